"""Every setting of the instance, read from the environment. docs/settings.md says what each one means.

Durations are seconds, sizes are bytes. A setting named in the environment but empty counts as unnamed.
"""

import os
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from config.secrets import FILE_NAME, BadVaultKeys, read_vault_keys, var_dir

MIB = 2**20

# Name: (type, default). None stands for a default that depends on another setting or on the machine.
SCHEME: dict[str, tuple[Any, Any]] = {
    "PRODUCTION": (bool, False),
    "DEBUG": (bool, False),
    "SECRET_KEY": (str, None),
    "VAULT_KEYS": (list, None),
    "VAR_DIR": (str, None),
    "DATABASE_URL": (str, None),
    "STORAGE_URL": (str, None),
    "REDIS_URL": (str, None),
    "HOST": (str, "127.0.0.1"),
    "PORT": (int, 8000),
    "ALLOWED_HOSTS": (list, []),
    "LOG_LEVEL": (str, "INFO"),
    "WORKERS": (int, None),
    "WARM_WORKERS": (int, 4),
    "WORKER_WAIT": (float, 4),
    "WORKER_MEMORY": (int, 256 * MIB),
    "WORKER_ISOLATION": (str, None),
    "MAX_SESSIONS": (int, 10_000),
    "FRAME_MAX": (int, 64 * MIB),
    "SESSION_PARK_AFTER": (float, 60),
    "PARK_EVERY_TURN": (bool, False),
    "STATE_CACHE": (int, 256 * MIB),
    "UNSAVED_MAX": (int, 512 * MIB),
    "AUTOSAVE_EVERY": (float, 5),
    "RECORD_TTL": (float, 7 * 86_400),
    "TURN_TIMEOUT": (float, 300),
    "DISCONNECT_AFTER": (float, 10),
    "CALL_PATIENCE": (float, 300),
    "CONNECTION_MAX_AGE": (float, 3600),
    "DRAIN_GRACE": (float, 30),
    "DRAIN_LINGER": (float, 3600),
    "STOP_LINGER": (float, None),
    "HEARTBEAT_EVERY": (float, 5),
    "SERVER_LOST_AFTER": (float, 20),
}

VAR_DIR = var_dir()

if (VAR_DIR / FILE_NAME).exists():
    environ.Env.read_env(VAR_DIR / FILE_NAME)
env = environ.Env(**SCHEME)


def setting(name: str, default: Any = None) -> Any:
    """The value of a setting of the scheme; `default` when it is unnamed and the scheme has none."""
    kind, usual = SCHEME[name]
    text = os.environ.get(name)
    if not text:
        return default if usual is None else usual
    try:
        return env(name)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ImproperlyConfigured(f"{name} is {text!r}; it must be {wanted}.") from error


def secret(name: str) -> Any:
    """The value of a setting that must be named."""
    value = setting(name)
    if value is None:
        raise ImproperlyConfigured(
            f"{name} is not set. `make up` makes one on its first start and keeps it in VAR_DIR/{FILE_NAME}; "
            "anywhere else name it in the environment (docs/settings.md says how)."
        )
    return value


PRODUCTION: bool = setting("PRODUCTION")
DEBUG: bool = setting("DEBUG")
SECRET_KEY: str = secret("SECRET_KEY")

# By their IDs, newest first: new data is sealed with the first one, every one of them opens what it sealed.
try:
    VAULT_KEYS: dict[str, bytes] = read_vault_keys(secret("VAULT_KEYS"))
except BadVaultKeys as error:
    raise ImproperlyConfigured(f"{error}.") from error

# Where it listens

HOST: str = setting("HOST")
PORT: int = setting("PORT")
ALLOWED_HOSTS: list[str] = [*setting("ALLOWED_HOSTS"), "localhost", "127.0.0.1", "[::1]"]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"

INSTALLED_APPS = [
    "channels",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "config",
    "projects",
    "vault",
    "snapshots",
    "sandboxes",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
]
USE_TZ = True
TIME_ZONE = "UTC"

# Where it keeps things

DATABASES: dict[str, dict[str, Any]] = {
    "default": environ.Env.db_url_config(setting("DATABASE_URL", f"sqlite:///{VAR_DIR / 'moorage.sqlite3'}"))
}
DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    Path(DATABASES["default"]["NAME"]).parent.mkdir(parents=True, exist_ok=True)
    # A writer takes its lock when its transaction begins: one that reads first and writes later would fail at
    # once, without waiting, whenever another wrote in between. FULL: a commit outlives a power cut.
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

STORAGE_URL: str = setting("STORAGE_URL", f"file://{VAR_DIR / 'blobs'}")
RECORD_TTL: float = setting("RECORD_TTL")

# Valkey or Redis: the channel layer and Celery's broker. Without a URL, the one that `make up` embeds.
EMBEDDED_VALKEY = VAR_DIR / "valkey.sock"
EMBEDS_VALKEY = setting("REDIS_URL") is None
REDIS_URL: str = setting("REDIS_URL", f"unix://{EMBEDDED_VALKEY}")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # Its receive blocks on purpose, for longer than a client's own time-out would allow.
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}]},
    }
}

CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)  # kombu's name for the same
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR_DIR / "beat")

# Workers: the processes in which sandboxes run

WORKERS: int = setting("WORKERS", 8 * (os.cpu_count() or 1))
WARM_WORKERS: int = setting("WARM_WORKERS")
WORKER_WAIT: float = setting("WORKER_WAIT")
WORKER_MEMORY: int = setting("WORKER_MEMORY")
WORKER_ISOLATION: str = setting("WORKER_ISOLATION", "required" if PRODUCTION else "auto")
if WORKER_ISOLATION not in ("required", "auto", "off"):
    raise ImproperlyConfigured(f"WORKER_ISOLATION is {WORKER_ISOLATION!r}; it must be required, auto or off.")

# Sessions

MAX_SESSIONS: int = setting("MAX_SESSIONS")
FRAME_MAX: int = setting("FRAME_MAX")
SESSION_PARK_AFTER: float = setting("SESSION_PARK_AFTER")
PARK_EVERY_TURN: bool = setting("PARK_EVERY_TURN")
STATE_CACHE: int = setting("STATE_CACHE")
UNSAVED_MAX: int = setting("UNSAVED_MAX")
AUTOSAVE_EVERY: float = setting("AUTOSAVE_EVERY")
TURN_TIMEOUT: float = setting("TURN_TIMEOUT")
DISCONNECT_AFTER: float = setting("DISCONNECT_AFTER")
CALL_PATIENCE: float = setting("CALL_PATIENCE")
CONNECTION_MAX_AGE: float = setting("CONNECTION_MAX_AGE")

# A server's end, and how the others learn of it

DRAIN_GRACE: float = setting("DRAIN_GRACE")
DRAIN_LINGER: float = setting("DRAIN_LINGER")
STOP_LINGER: float = setting("STOP_LINGER", 30 if PRODUCTION else 0)
HEARTBEAT_EVERY: float = setting("HEARTBEAT_EVERY")
SERVER_LOST_AFTER: float = setting("SERVER_LOST_AFTER")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": setting("LOG_LEVEL")},
    "loggers": {"celery": {"level": "WARNING"}},  # else each of the sweeps says every few seconds that it ran
}
