"""An index behind HTTP: server, client, and what they say to each other."""
