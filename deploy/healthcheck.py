"""Exit code 0 if the dashboard in this container answers. Asks by a host name that its settings allow."""

from __future__ import annotations

import os
import sys
import urllib.request

host = os.environ.get("ALLOWED_HOSTS", "").split(",")[0].strip() or "localhost"
address = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/healthz"
try:
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Host": host}), timeout=3):
        pass
except OSError as error:
    sys.exit(f"{address} does not answer: {error}")
