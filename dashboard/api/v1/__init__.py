"""The API under ``/api/v1/``: all that the pages show and do, for programs. `dashboard.api.v1.api.api` is what the URLconf mounts."""
