"""The site: settings from the environment, ASGI, Celery, URLs, and the command that runs it all."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
