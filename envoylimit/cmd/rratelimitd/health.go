package main

import (
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// healthServer serves until the drain, for "" and "ratelimit".
type healthServer struct {
	*health.Server

	draining chan struct{} // closed then
}

func newHealthServer() *healthServer {
	h := &healthServer{health.NewServer(), make(chan struct{})}
	h.SetServingStatus("ratelimit", healthv1.HealthCheckResponse_SERVING)
	return h
}

// drain makes the service not serving.
func (h *healthServer) drain() {
	h.Shutdown()
	close(h.draining)
}

// Watch tells a client how the service is, and ends with the drain: the gRPC server waits for its streams.
func (h *healthServer) Watch(r *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	answer, err := h.Check(stream.Context(), r)
	if err != nil {
		answer = &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVICE_UNKNOWN}
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return stream.Context().Err()
	case <-h.draining:
	}
	if answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return nil
	}
	return stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING})
}
