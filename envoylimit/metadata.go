package envoylimit

import (
	"maps"

	"google.golang.org/protobuf/types/known/structpb"
)

// metadata reads what is passed on to Envoy; nil if there is nothing.
func (p *parser) metadata(f field) map[string]any {
	if f.value == nil || isNull(f.value) {
		return nil
	}
	var all map[string]any
	if err := f.value.Decode(&all); err != nil {
		p.failf(f.value, "metadata is no map with text as keys")
		return nil
	}
	if _, err := structpb.NewStruct(all); err != nil {
		p.failf(f.value, "metadata has what JSON has not: %v", err)
		return nil
	}
	return all
}

// mergeMetadata adds to a map what another has: of values given twice the first counts, of maps all that they have.
func mergeMetadata(into, from map[string]any) {
	for key, value := range from {
		has, twice := into[key]
		if !twice {
			into[key] = value
			continue
		}
		a, isMap := has.(map[string]any)
		b, areMaps := value.(map[string]any)
		if isMap && areMaps {
			a = maps.Clone(a)
			mergeMetadata(a, b)
			into[key] = a
		}
	}
}
