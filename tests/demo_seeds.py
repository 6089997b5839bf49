"""The quickstart on several seeds, as a newcomer runs it: `python -m tests.demo_seeds 1 2 3`.

Fails when a warm start lies outside .20 to .50, or when a run gains less than .30 pass@1 on held-out tasks.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
GAIN, START = 0.30, (0.20, 0.50)


def prorl(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "prorl_cli", *arguments], cwd=ROOT, check=True, **options)


def train(seed, folder):
    run = folder / f"seed-{seed}"
    started = time.monotonic()
    prorl("launch", "recipes/quickstart.yaml", "--set", f"seed={seed}", "--run-dir", str(run))
    minutes = (time.monotonic() - started) / 60
    status = json.loads(prorl("status", str(run), "--json", stdout=subprocess.PIPE).stdout)
    before, after = status["eval"]["before"], status["eval"]["after"]
    gain = after["pass_at_1"] - before["pass_at_1"]
    good = gain >= GAIN and START[0] <= before["pass_at_1"] <= START[1]
    print(
        f"seed {seed}: {before['pass_at_1']:.3f} → {after['pass_at_1']:.3f} (n = {after['n']}, ± {after['stderr']:.3f}), "
        f"gain {gain:+.3f}, {status['steps']} steps, {minutes:.1f} min: {'ok' if good else 'NOT ENOUGH'}",
        flush=True,
    )
    return good


def main(seeds):
    with tempfile.TemporaryDirectory(prefix="prorl-demo-") as folder:
        results = [train(int(seed), Path(folder)) for seed in seeds]
    print(f"{sum(results)} of {len(results)} seeds gained at least {GAIN:.2f}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
