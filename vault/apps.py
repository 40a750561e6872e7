"""The Django app."""

from django.apps import AppConfig


class VaultConfig(AppConfig):
    """Kept bytes."""

    name = "vault"
