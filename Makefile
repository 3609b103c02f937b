# One entry for people and CI. Everything runs through uv, which installs what pyproject.toml names.

RUN := uv run
# The shell's own settings decide nothing here. Django asks the database for its version even to check fields, so the
# checks bring one.
unexport DATABASE_URL DUEKEEPER_SECRET_KEY

.DEFAULT_GOAL := help
.PHONY: help check test race process mutations docs lock

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

check: ## format, lint, types, imports, migrations, Django's checks, generated documents
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports --no-cache
	$(RUN) python -m workers.embedded sh -ec '\
		python manage.py makemigrations --check --dry-run; \
		python manage.py check --fail-level WARNING'
	$(RUN) python .ci/docs.py --check

test: ## every test that needs no browser and no extra server
	$(RUN) pytest

race: ## only the tests with real concurrency; RACE_ROUNDS=2000 for the full number
	$(RUN) pytest -m race

process: ## only the tests with real processes
	$(RUN) pytest -m process

mutations: ## write known faults into a copy of the project, one at a time; the tests must notice each
	$(RUN) python -m tests.mutations

docs: ## write the generated documents again
	$(RUN) python .ci/docs.py

lock: ## pin all packages and export requirements.txt; UPGRADE=1 takes newer ones
	$(RUN) --no-sync python .ci/lock.py $(if $(UPGRADE),--upgrade)
