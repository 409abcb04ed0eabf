# SPDX-License-Identifier: Apache-2.0
"""What programs written for ``mooncake.store`` need, on kvcove. docs/mooncake.md says what differs.

The distribution ``kvcove-mooncake`` installs it as the package ``mooncake``; where another
distribution owns that package, ``python -m kvcove.mooncake run COMMAND`` puts this one over it for
one command.
"""
