#!/usr/bin/env python3
"""One line for each answer and tensor of a JSON report: the range of rms_ratio and scaled_ulp over its fixtures, and the
largest share of its limits.

    kda-check run FIXTURES... --json run.json -q && scripts/summarize.py run.json
"""
import argparse
import json


def number(value):
    return float(value)  # "inf" and "nan" are strings in the report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("--against", default="oracle")
    arguments = parser.parse_args()
    with open(arguments.report, encoding="utf-8") as file:
        document = json.load(file)
    rows = {}
    for case in document["cases"]:
        if case["against"] != arguments.against:
            continue
        for tensor in case["tensors"]:
            if tensor["verdict"] == "skipped":
                continue
            key = (case["variant"], case["dtype"], case["compute"], tensor["name"])
            metrics = {name: number(value) for name, value in tensor["metrics"].items()}
            limits = {limit["metric"]: number(limit["value"]) for limit in tensor["limits"]}
            share = max((metrics[name] / limits[name] for name in ("rms_ratio", "scaled_ulp") if limits.get(name)), default=0)
            rows.setdefault(key, []).append((metrics["rms_ratio"], metrics.get("scaled_ulp", 0), share))
    print(f"{'answer':<14} {'dtype':<5} {'compute':<7} {'tensor':<12} {'rms_ratio':<20} {'scaled_ulp':<18} of limit")
    for key in sorted(rows):
        rms, units, shares = zip(*rows[key])
        variant, dtype, compute, tensor = key
        print(f"{variant:<14} {dtype:<5} {compute:<7} {tensor:<12} {min(rms):.1e} .. {max(rms):.1e}   "
              f"{min(units):<8.3g} {max(units):<8.3g}  {100 * max(shares):.0f} %")


if __name__ == "__main__":
    main()
