# One image for the server, Celery's worker and its beat; the command says which:
#   manage.py serve  |  celery --app config worker --pool threads --concurrency 2  |  celery --app config beat
# It is set for production: name SECRET_KEY, VAULT_KEYS, DATABASE_URL, STORAGE_URL and REDIS_URL (docs/settings.md).
# Workers isolate themselves by user namespaces, which the container's security profile must allow.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --home-dir /srv/moorage moorage

WORKDIR /srv/moorage/app
COPY requirements.txt .
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements.txt

COPY manage.py ./
COPY config config
COPY projects projects
COPY vault vault
COPY snapshots snapshots
COPY sandboxes sandboxes

ENV PRODUCTION=1 HOST=0.0.0.0 PORT=8000 VAR_DIR=/srv/moorage/var PYTHONUNBUFFERED=1
RUN install --directory --owner=moorage --group=moorage /srv/moorage/var
VOLUME /srv/moorage/var
USER moorage
EXPOSE 8000
STOPSIGNAL SIGTERM
CMD ["python", "manage.py", "serve"]
