# `make up` runs an instance, `make test` everything that must hold. Both install what they need first.

PYTHON3 ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PIP_COMPILE := $(VENV)/bin/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-trusted-host \
	--no-emit-find-links --no-header

.PHONY: up install test tests-beside-services lint bench load requirements system

up: $(INSTALLED)
	@exec $(PYTHON) manage.py up --with-parent

install: $(INSTALLED)

$(INSTALLED): requirements.txt
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Moorage needs Python 3.11 or later: make PYTHON3=/path/to/it"; exit 1; }
	@test -x $(PYTHON) || $(PYTHON3) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

test: $(INSTALLED) system lint
	$(PYTHON) -m tests.services.run $(MAKE) --no-print-directory tests-beside-services

tests-beside-services:
	$(VENV)/bin/pytest -n 3 --dist worksteal
	$(PYTHON) -m tests.services.run --on-postgres $(VENV)/bin/pytest tests/vault tests/snapshots tests/projects \
		tests/sandboxes/test_database.py

lint: $(INSTALLED)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --strict
	$(VENV)/bin/lint-imports
	DJANGO_SETTINGS_MODULE=tests.settings $(PYTHON) manage.py makemigrations --check --dry-run

# What the tests need from the system; says what is missing where it may not install it.
system:
	@tests/system.sh

bench: $(INSTALLED)
	$(PYTHON) -m bench

load: $(INSTALLED)
	LOAD=1 $(VENV)/bin/pytest -s tests/load tests/end_to_end/test_durability.py tests/end_to_end/test_fuzz.py

requirements: $(INSTALLED)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check pip-tools
	$(PIP_COMPILE) --output-file requirements.txt requirements.in
