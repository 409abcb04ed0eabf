# SPDX-License-Identifier: Apache-2.0
"""kvcove beside the original. In the sources alone: no wheel has it (kvcove/_lab.py finds it)."""
