"""Settings, all from the environment; this module and `Storage.from_env` are the only readers of it here.

KENNEL_SECRET_KEY     key for sessions and tokens; required unless DEBUG
DEBUG                 1 for development on this machine
DATABASE_URL          default: SQLite in .kennel/
REDIS_URL             shares presence and hints between several dashboard processes
KENNEL_PROCESSES      how many dashboard processes serve this fleet (default 1; more need REDIS_URL)
KENNEL_TOUR           1 shows the guided tour of the demo
KENNEL_FIRST_WORKER_TOKEN, KENNEL_FIRST_API_TOKEN
                      accepted from workers, and from programs as an operator's, by a dashboard that `kennel dashboard` starts
KENNEL_STATE_DIR      folder of the database, the collected files and the journal; default: .kennel
ALLOWED_HOSTS         comma-separated host names; default: this machine only
KENNEL_TRUSTED_ORIGINS  comma-separated origins behind a proxy, such as https://kennel.example.org
KENNEL_HTTPS          1 when people reach the dashboard over HTTPS: secure cookies, HSTS
KENNEL_WEBHOOKS       comma-separated addresses to notify of releases, signed with KENNEL_WEBHOOK_SECRET
KENNEL_EMAIL_URL      mail server for alerts: smtp://USER:PASSWORD@HOST:PORT, smtp+tls:// for STARTTLS, smtps:// for TLS
KENNEL_EMAIL_FROM     sender of these mails (default kennel@localhost)
KENNEL_LOG_JSON       1 for a log of one JSON object a line
KENNEL_API_READS, KENNEL_API_WRITES, KENNEL_API_REFUSED
                      requests a minute of one token or user; refused ones from one address (default 6000, 600, 120)
KENNEL_DAILY_BUDGET   dollars a day for storage requests; beyond 80 % of it the dashboard warns; default: none
KENNEL_PRICES         JSON: dollars for 10,000 requests by kind, such as {"queue": 0.005, "as_of": "2026-11"}
KENNEL_SWEEP_HOURS    how often one process removes payloads that no message needs any more; default 1, 0: never
KENNEL_AUDIT_DAYS     how long the audit is kept, at least 1; default: for ever
KENNEL_IDLE_MINUTES   after how long without a request operators and admins are signed out (default 60; 0: never)
KENNEL_FRESH_MINUTES  how old a sign-in may be to clear, delete or break without the password once more (default 15)
KENNEL_SECOND_FACTOR_ROLES  comma-separated roles that must set up a second factor, such as admin,operator; default: none
KENNEL_AUDIT_KEY      long random text that the kept ends of the audit are signed with; keep it away from the database
KENNEL_AUDIT_SYSLOG   where each row of the audit is sent, too: udp://HOST:PORT or the path of a socket such as /dev/log
KENNEL_OIDC_URL       issuer for single sign-on, with KENNEL_OIDC_CLIENT_ID and KENNEL_OIDC_SECRET; KENNEL_OIDC_NAME is
                      what the button says, KENNEL_OIDC_CLAIM what names the user (default preferred_username);
                      KENNEL_OIDC_GROUPS maps its groups to roles (ops=operator,…), KENNEL_OIDC_GROUPS_CLAIM names the claim (groups)
KENNEL_PREFIX, AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_URL   see `Storage.from_env`
"""

from __future__ import annotations

import gc
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url
from csp.constants import NONCE, NONE, SELF

# A start imports some hundred modules, whose objects stay: to search them for garbage again and again takes a fifth of the time.
gc.set_threshold(10_000, 10, 1_000)

_PACKAGE = Path(__file__).resolve().parent
BASE_DIR = _PACKAGE.parent
_IS_CLONE = (BASE_DIR / "manage.py").is_file()
# An installed package has templates and static files inside, and keeps its data where it is started.
FILES_DIR = BASE_DIR if _IS_CLONE else _PACKAGE
STATE_DIR = Path(os.environ.get("KENNEL_STATE_DIR") or (BASE_DIR if _IS_CLONE else Path.cwd()) / ".kennel")


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


DEBUG = _flag("DEBUG")
HTTPS = _flag("KENNEL_HTTPS")
PROCESSES = int(os.environ.get("KENNEL_PROCESSES") or 1)
REDIS_URL = os.environ.get("REDIS_URL", "")
# Read by uvicorn itself; here for the checks alone.
FORWARDED_ALLOW_IPS = os.environ.get("FORWARDED_ALLOW_IPS", "")
AUDIT_DAYS = float(os.environ.get("KENNEL_AUDIT_DAYS") or 0)

# Without a key of its own a process makes one: tools run, but `checks.refuse_unsafe` lets no server start.
SECRET_KEY_GIVEN = bool(os.environ.get("KENNEL_SECRET_KEY"))
SECRET_KEY = os.environ.get("KENNEL_SECRET_KEY") or (
    "development-only-" + "0" * 40 if DEBUG else secrets.token_urlsafe(50)
)
ALLOWED_HOSTS = _list("ALLOWED_HOSTS") or ["localhost", "127.0.0.1", "[::1]"]
CSRF_TRUSTED_ORIGINS = _list("KENNEL_TRUSTED_ORIGINS")

STORAGE_ENV = {
    name: os.environ[name]
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_URL", "KENNEL_PREFIX")
    if os.environ.get(name)
}

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.mfa",
    "allauth.usersessions",
    "django_htmx",
    "template_partials",
    "dashboard",
]

MIDDLEWARE = [
    "dashboard.core.middleware.request_id",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.core.middleware.Compressed",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "dashboard.core.middleware.no_store",
    "dashboard.core.middleware.DatabaseTrouble",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "dashboard.accounts.sessions.Authentication",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FILES_DIR / "templates"],
        "OPTIONS": {
            "loaders": [
                (
                    "template_partials.loader.Loader",
                    [
                        (
                            "django.template.loaders.cached.Loader",
                            [
                                "dashboard.core.templates.Loader",
                                "django.template.loaders.app_directories.Loader",
                            ],
                        )
                    ],
                )
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "dashboard.core.context_processors.kennel",
            ],
        },
    }
]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if os.environ.get("DATABASE_URL"):
    DATABASES: dict[str, Any] = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
else:
    DATABASES = {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(STATE_DIR / "dashboard.sqlite3")}
    }
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE: a transaction that will write waits for its turn at the start instead of failing at the end.
    DATABASES["default"]["OPTIONS"] = {
        # A press that finds the file locked is answered after this long, not left waiting.
        "timeout": 5,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # To open the file again costs as much as all of a page's queries; the last one to close it copies its journal back.
    DATABASES["default"]["CONN_MAX_AGE"] = 600
elif DATABASES["default"]["ENGINE"].endswith("postgresql"):
    # Making a connection takes longer than most pages. A broken one is noticed before it is lent out.
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 8, "timeout": 20}
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True

# Named, not "default": Channels would subscribe every socket to a default layer; we subscribe once per process.
CHANNEL_LAYERS: dict[str, Any] = {}
if REDIS_URL:
    CHANNEL_LAYERS["fleet"] = {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": STORAGE_ENV.get("KENNEL_PREFIX", "kennel-")},
    }

# What the API counts, for all processes together; "local" stands in while Redis is away.
_LOCAL = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
CACHES: dict[str, Any] = {"default": _LOCAL, "local": _LOCAL}
CACHE_AWAY: tuple[type[Exception], ...] = ()
if REDIS_URL:
    # Its library takes a tenth of a second to load: only for those who have it.
    from redis import RedisError

    CACHE_AWAY = (RedisError,)
    CACHES["default"] = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": STORAGE_ENV.get("KENNEL_PREFIX", "kennel-"),
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5},
    }
DAILY_BUDGET = float(os.environ.get("KENNEL_DAILY_BUDGET") or 0)
SWEEP_SECONDS = 3600.0 * float(os.environ.get("KENNEL_SWEEP_HOURS") or 1)
PRICES = os.environ.get("KENNEL_PRICES") or "{}"
# Requests a minute: of one token or user, and refused ones from one address.
API_LIMITS = {
    "reads": int(os.environ.get("KENNEL_API_READS") or 6000),
    "writes": int(os.environ.get("KENNEL_API_WRITES") or 600),
    "refused": int(os.environ.get("KENNEL_API_REFUSED") or 120),
}

# The journal of the audit's ends: under this key, if there is one.
AUDIT_KEY = os.environ.get("KENNEL_AUDIT_KEY", "")
AUDIT_SYSLOG = os.environ.get("KENNEL_AUDIT_SYSLOG", "")
WEBHOOKS = _list("KENNEL_WEBHOOKS")
WEBHOOK_SECRET = os.environ.get("KENNEL_WEBHOOK_SECRET", "")

# Mail of alerts; without a server none is sent.
_mail = urlsplit(os.environ.get("KENNEL_EMAIL_URL", ""))
EMAIL_HOST = _mail.hostname or ""
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.scheme == "smtp+tls", _mail.scheme == "smtps"
EMAIL_PORT = _mail.port or (465 if EMAIL_USE_SSL else 587 if EMAIL_USE_TLS else 25)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = unquote(_mail.username or ""), unquote(_mail.password or "")
DEFAULT_FROM_EMAIL = os.environ.get("KENNEL_EMAIL_FROM") or "kennel@localhost"

# `kennel dashboard` accepts them from workers, and from programs that act as an operator.
FIRST_WORKER_TOKEN = os.environ.get("KENNEL_FIRST_WORKER_TOKEN", "")
FIRST_API_TOKEN = os.environ.get("KENNEL_FIRST_API_TOKEN", "")

# The demo's guided tour.
TOUR = _flag("KENNEL_TOUR")

STATIC_URL = "static/"
STATIC_ROOT = STATE_DIR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STATICFILES_DIRS: list[Any] = [path for path in (FILES_DIR / "static",) if path.is_dir()]
for _prefix, _parts in (
    ("uplot", "uplot/dist"),
    ("idiomorph", "idiomorph/dist"),
    ("plex", "@fontsource-variable/ibm-plex-sans/files"),
):
    if (_folder := BASE_DIR / "node_modules" / _parts).is_dir():
        STATICFILES_DIRS.append((_prefix, _folder))
# `collectstatic` gives hashed names that browsers may keep for ever; without it files are served as they lie.
_COLLECTED = not DEBUG and (STATIC_ROOT / "staticfiles.json").is_file()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if _COLLECTED
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = not _COLLECTED
WHITENOISE_AUTOREFRESH = DEBUG

LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_ADAPTER = "dashboard.accounts.single_sign_on.Accounts"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
# One lock for passwords and codes, in the database and so for all processes: `dashboard.accounts.sign_in`.
ACCOUNT_RATE_LIMITS = MFA_RATE_LIMITS = False
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Kennel"
MFA_TOTP_TOLERANCE = 1  # half a minute early or late: telephones' clocks differ
MFA_ADAPTER = "dashboard.accounts.two_factor.MfaAdapter"
SOCIALACCOUNT_ADAPTER = "dashboard.accounts.single_sign_on.SocialAdapter"
OIDC: dict[str, Any] = {
    "url": os.environ.get("KENNEL_OIDC_URL", "").rstrip("/"),
    "client_id": os.environ.get("KENNEL_OIDC_CLIENT_ID", ""),
    "secret": os.environ.get("KENNEL_OIDC_SECRET", ""),
    "name": os.environ.get("KENNEL_OIDC_NAME") or "Single sign-on",
    "claim": os.environ.get("KENNEL_OIDC_CLAIM") or "preferred_username",
    # The provider's group to our role: "kennel-admins=admin,kennel-ops=operator".
    "groups": dict(part.rsplit("=", 1) for part in _list("KENNEL_OIDC_GROUPS") if "=" in part),
    "groups_claim": os.environ.get("KENNEL_OIDC_GROUPS_CLAIM") or "groups",
}
if OIDC["url"]:
    SOCIALACCOUNT_PROVIDERS = {
        "openid_connect": {
            "APPS": [
                {
                    "provider_id": "sso",
                    "name": OIDC["name"],
                    "client_id": OIDC["client_id"],
                    "secret": OIDC["secret"],
                    "settings": {"server_url": OIDC["url"], "oauth_pkce_enabled": True},
                }
            ]
        }
    }
PASSWORD_HASHERS = [
    "dashboard.accounts.hashing.PooledHasher",
    "django.contrib.auth.hashers.PBKDF2SHA1PasswordHasher",
    "django.contrib.auth.hashers.ScryptPasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
USE_I18N = False  # docs/decisions/0170-english-only.md
USE_TZ = True
TIME_ZONE = "UTC"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        # Browsers hold the answer to a form to this, too: signing in elsewhere is a form that redirects there.
        "form-action": [SELF, *([_origin(OIDC["url"])] if OIDC["url"] else [])],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 12 * 3600
# Of operators and admins; viewers may be a wallboard.
IDLE_SECONDS = 60.0 * float(os.environ.get("KENNEL_IDLE_MINUTES") or 60)
# What destroys asks for the password once more when the sign-in is older.
FRESH_SECONDS = 60.0 * float(os.environ.get("KENNEL_FRESH_MINUTES") or 15)
SECOND_FACTOR_ROLES = frozenset(_list("KENNEL_SECOND_FACTOR_ROLES"))
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
DATA_UPLOAD_MAX_MEMORY_SIZE = 256 * 1024

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "coordinator.logs.LineFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        },
        "json": {"()": "coordinator.logs.JsonFormatter"},
    },
    "filters": {
        "request_id": {"()": "dashboard.core.middleware.WithRequestId"},
        "sockets": {"()": "dashboard.core.middleware.WithoutSockets"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "json" if _flag("KENNEL_LOG_JSON") else "line",
            "filters": ["request_id"],
        }
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    # These two log every request and every socket.
    "loggers": {
        name: {"level": "WARNING"} for name in ("uvicorn.access", "azure.core.pipeline.policies", "azure")
    }
    | {"uvicorn.error": {"filters": ["sockets"]}},
}
if AUDIT_SYSLOG:
    _syslog = urlsplit(AUDIT_SYSLOG)
    LOGGING["handlers"]["audit_syslog"] = {
        "class": "logging.handlers.SysLogHandler",
        "address": (_syslog.hostname, _syslog.port or 514) if _syslog.scheme == "udp" else AUDIT_SYSLOG,
        "facility": "auth",
        "formatter": "syslog",
    }
    LOGGING["formatters"]["syslog"] = {"format": "kennel-audit: %(message)s"}
    LOGGING["loggers"]["kennel.audit"] = {"handlers": ["audit_syslog"], "level": "INFO", "propagate": False}
