"""Kokoro-82M on NPUs: the library. It knows neither DVC nor Hydra, nor params.yaml."""
