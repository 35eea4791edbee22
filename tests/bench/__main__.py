"""All benchmarks of the main job: python -m tests.bench [--json] [--rounds N]."""

from tests.bench import model, serving
from tests.bench.figures import run_benchmark

run_benchmark(__doc__ or "", (model.TITLE, model.measure), (serving.TITLE, serving.measure))
