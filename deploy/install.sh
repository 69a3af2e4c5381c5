#!/bin/sh
# Installs this checkout with the extras $1 into /opt/tailkeeper, in the versions that were tested and as small as may be: without pip,
# without other people's tests, and compiled, because the root is read-only and a start would else compile for two seconds.
# Not compiled is what nobody imports: the hundreds of languages that a highlighter knows, and an old version inside a new one.
set -eu
pip --python /opt/tailkeeper/bin/python install --quiet --no-compile -c constraints.txt ".[$1]"
find /opt/tailkeeper/lib -type d -name tests -prune -exec rm -r {} +
/opt/tailkeeper/bin/python -m compileall -q -x '/(pygments/(lexers|styles|formatters)|pydantic/v1)/' /opt/tailkeeper/lib
