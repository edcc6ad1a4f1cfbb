#!/usr/bin/env python3
"""calibrate_twins.py PROGRAM: how far healthy answers are from their twins (docs/twins.md, "Calibration").

Makes a suite of problems of every regime, shapes and seeds, each answered in ways of computing drawn at random, none of
which need be among the twins; runs it; prints the distribution of statistic over limit for each
precision, pass and tensor, and every answer that is beyond its twins. Exits with 1 where more of them FAILED for it than
are allowed.

  --answers N     how many answers (default 400)
  --seed S        other problems, other draws (default 1)
  --json FILE     keep the report
  --most T        tokens of the longest problems, a sixth of them (default 320)
  --threads N     as of run
  --allowed N     how many may fail (default 0)
  --left-out      each answer computes in some way that is taken out of its twins, as a new kernel would
  --stages        stages of chunk forms, in place of tensors
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

# Not those that no kernel is expected to survive, that take minutes, or whose answers are exact.
FORWARD = ["control", "sparse_spikes", "mixed_channels", "spike_then_slow", "mask_m1000", "lb_real", "unbounded_softplus",
           "v_outlier", "corr_keys", "gate_zero", "k3_layer0", "k3_layer1", "k3_slow", "zero_keys", "slow_alpha",
           "residual_cancel", "tails", "varlen", "gva"]
BACKWARD = ["bwd_lb_saturated", "bwd_gate_zero", "bwd_tail", "bwd_chain", "control:loss=1", "corr_keys:loss=1",
            "lb_real:loss=1", "gva:loss=1"]
WORDS = {
    "exponential": ["exact", "libm", "cuda", "cuda-fast", "exp2-scaled"],
    "contraction": ["fused", "separate"],
    "reduction": ["sequential", "pairwise", "tree:8", "tree:64", "blocks:16"],
}
CHUNK_WORDS = {
    "decay": ["pair", "anchor-pair:16", "anchor-pair:32", "anchor-mid:16", "anchor-mid:32", "anchor-first:16"],
    "inverse": ["substitution", "blocks:16", "blocks:32", "doubling:16"],
    "tail": ["difference", "suffix"],
}
# Of chunk forms that no twin has.
NEW_WORDS = {"decay": ["factored:16", "pair-late", "clamp:126", "anchor-first:32", "anchor-mid:64"],
             "inverse": ["horner:16", "doubling:32"]}
# Precision: dtype and words of the chunk form.
CLASSES = {"fp32": ("fp32", "storage=none"), "tf32": ("fp32", "storage=fla"), "bf16": ("bf16", ""), "fp16": ("fp16", "")}


UNBOUNDED = ["mask_m1000", "unbounded_softplus", "bwd_tail", "bwd_lb_saturated"]
FACTORED = ("decay=anchor-first", "decay=anchor-mid", "decay=factored", "decay=clamp")
ALIKE = ["corr_keys", "gate_zero", "bwd_gate_zero", "k3_layer1", "k3_slow"]
# Values near the ends of the formats.
SIZES = {"fp16": [1e-7, 1e-6, 1e-5, 1e-3, 100], "others": [1e-41, 1e-39, 1e-37, 1e-30, 1e20, 1e30]}


def left_out(draw, variant, words, chunk_size, precision):
    """A way in which this answer computes, that its twins shall not."""
    ways = [word.partition(":")[0] for word in words if not word.startswith("storage")]
    if variant == "chunk":
        ways += [f"chunk-size={chunk_size}"] + [way for way in ways if way.startswith("decay")] * 3
    if precision == "fp32":
        ways += ["chunk" if variant == "chunk" else "recurrence"] * 3
    return draw.choice(ways)


def line(draw, most, stages, leave_out):
    backward = draw.random() < 0.3
    regime = draw.choice(BACKWARD if backward else FORWARD)
    name, _, given = regime.partition(":")
    widths = [1, 2, 4, 8] if draw.random() < 0.1 else [16, 32, 64, 128]
    shape = {"T": draw.choice([1, 2, 3, 5, 16, 33, 64, 65, 130, 200, most, most]), "K": draw.choice(widths),
             "V": draw.choice(widths), "seed": draw.randrange(1, 1 << 30)}
    if name == "varlen":
        del shape["T"]
    if name != "gva" and name != "bwd_chain":
        shape["H"] = draw.choice([1, 2, 3])
    if name == "bwd_chain":
        del shape["K"], shape["V"]
    precision = draw.choice(list(CLASSES))
    # One channel makes all keys one: backwards chunks of 64 in 16 bits lose a tenth of dk there, those of 16 do not.
    if backward and precision in ("bf16", "fp16") and shape.get("K") == 1:
        shape["K"] = 2
    target = f"{name}:" + ",".join(([given] if given else []) + [f"{key}={value}" for key, value in shape.items()])
    dtype, storage = CLASSES[precision]
    # Through the final state alone gradients fade as the state does, to the least numbers of their format.
    fading = 0
    if backward and draw.random() < 0.4:
        fading = draw.choice([2, 3])
        target = target.replace(",loss=1", "").replace(":loss=1,", ":") + f",loss={fading}"
    size = draw.choice(SIZES.get(precision, SIZES["others"])) if draw.random() < 0.1 else 1
    if size != 1:
        target += f",size={size}"
    words = [f"{key}={draw.choice(values)}" for key, values in WORDS.items()]
    variant, chunk_size = "recurrent", 0
    if stages or precision != "fp32" or draw.random() < 0.6:
        variant = "chunk"
        words += [f"{key}={draw.choice(values + NEW_WORDS.get(key, []) * leave_out)}" for key, values in CHUNK_WORDS.items()]
        words += [storage] if storage else []
        # Away from the anchor factors grow as gates sum up: beyond what is finite where gates are unbounded, and
        # backwards beyond what very small or large values, what fades, or the last digits of dg, leave room for.
        if name in UNBOUNDED or (backward and (size != 1 or fading == 3)):
            words = ["decay=anchor-pair:16" if word.startswith(FACTORED) else word for word in words]
        # Powers of a matrix of keys alike lose what the inverse has not; few channels are alike.
        if name in ALIKE or shape.get("K", 16) < 4:
            words = ["inverse=blocks:16" if word.startswith(("inverse=doubling", "inverse=horner")) else word for word in words]
        chunk_size = draw.choice([16, 32, 64])
    options = f" --chunk-size {chunk_size}" if chunk_size else ""
    if leave_out:
        options += f" --twins-without {left_out(draw, variant, words, chunk_size, precision)}"
    asked = "--against none --stages" if stages else "--against oracle" + " --backward" * backward
    return f"{target} --variant {variant} --dtype {dtype} {asked} --arithmetic {','.join(words)}{options}"


def stage_cases(document):
    """Stages in the words of cases."""
    for item in document.get("stages", []):
        limits = [{"metric": "share", "value": 1}]  # what breaks in one stage breaks in those behind it too
        share = max(float("inf") if stage["nonfinite"] else float(stage["scaled_ulp"] or 0) / float(stage["limit"])
                    for stage in item["stages"])
        for stage in item["stages"]:
            stage.update(metrics={"share": share}, limits=limits)
            if stage["twins"] is None:
                del stage["twins"]
        yield {**item, "pass": "stage", "tensors": item["stages"]}


def percentile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--answers", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=320)
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--allowed", type=int, default=0)
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--stages", action="store_true")
    words = parser.parse_args()
    draw = random.Random(words.seed)
    with tempfile.TemporaryDirectory() as folder:
        suite, report = os.path.join(folder, "calibration.txt"), words.json or os.path.join(folder, "run.json")
        with open(suite, "w", encoding="ascii") as file:
            for _ in range(words.answers):
                file.write(line(draw, words.most, words.stages, words.left_out) + "\n")
        done = subprocess.run([words.program, "run", "@" + suite, "-q", "--report", f"json={report}"] +
                              (["--threads", str(words.threads)] if words.threads else []),
                              capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(done.stderr)
        with open(report, encoding="utf-8") as file:
            document = json.load(file)
    ratios, beyond, failed, inconclusive, judged, broken = collections.defaultdict(list), [], 0, 0, 0, 0
    answers = list(stage_cases(document)) if words.stages else document["cases"]
    for item in answers:
        for tensor in item["tensors"]:
            if "twins" not in tensor:
                continue
            judged += 1
            ratio = float(tensor["twins"]["ratio"])
            ratios[item["compute"], item["pass"], tensor["name"]].append(ratio)
            if ratio > 1 and any(limit["value"] < abs(float(tensor["metrics"].get(limit["metric"], 0)))
                                 for limit in tensor["limits"]):
                broken += 1  # this way of computing does not survive this problem, whatever its twins say
            elif ratio > 1:
                failed += tensor["verdict"] == "fail"
                inconclusive += tensor["verdict"] == "inconclusive"
                beyond.append((ratio, tensor, item))
    print(f"{'':34}{'number':>7}{'median':>8}{'95 %':>8}{'99 %':>8}{'most':>8}")
    for key, values in sorted(ratios.items()):
        values.sort()
        print(f"{' '.join(key):34}{len(values):7}" + "".join(
            f"{percentile(values, share):8.3f}" for share in (0.5, 0.95, 0.99)) + f"{values[-1]:8.3f}")
    for ratio, tensor, item in sorted(beyond, key=lambda entry: -entry[0]):
        print(f"{ratio:.3g} {tensor['verdict']} {tensor['name']}: {tensor.get('reason', '')}\n    {item['repro']}")
    print(f"{judged} comparisons, {len(answers)} answers: {failed} failed by twins, {inconclusive} inconclusive by twins; "
          f"{broken} more break a limit as well")
    sys.exit(1 if failed > words.allowed else 0)


if __name__ == "__main__":
    main()
