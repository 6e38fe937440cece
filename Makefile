# Each command sets up what it needs, under .venvs/ and the user's cache, and can be run again and again, also twice at once.
#
#   make demo    the sample tasks with oracle, nop and the real Claude Code CLI against a model server on this machine
#   make test    all tests, on every supported Python that is found
#   make lint    ruff, mypy, import-linter
#   make bench   what the plugin costs
#   make soak    kills at many random points, a long run: half an hour and more
#   make lock    newest versions into requirements/ and package-lock.json
#   make clean   remove what the commands have made here

PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)

.PHONY: demo test lint bench soak lock clean

demo test lint bench soak lock:
	@$(if $(PYTHON),,$(error Python 3.11 or newer is needed))"$(PYTHON)" -m tests.make $@

clean:
	rm -rf .venvs .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
