"""A system behind an OpenAI-compatible endpoint. `server.create_app` is the HTTP side, `service.Service` what answers."""
