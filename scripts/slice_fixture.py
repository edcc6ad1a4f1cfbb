#!/usr/bin/env python3
"""Cut a small fixture out of a large one, exactly: heads, batch rows and sequences do not see each other, and the first
tokens do not see the later ones. What is no longer true of the cut (the final state of a shortened run, gradients,
stages) is left out. Needs h5py.

    scripts/slice_fixture.py fla_bf16_gva.h5 out.h5 --value-heads 0,1 --tokens 48
"""
import argparse

import h5py
import numpy as np

AXES = {
    "q": "bthk", "k": "bthk", "v": "btjv", "g": "btjk", "beta": "btj", "A_log": "j", "dt_bias": "jk",
    "initial_state": "nj..", "o": "btjv", "final_state": "nj..",
}


def copy_dataset(source, target_group, name, selection, heads):
    """Copies source[selection] with the element type of the source, deflated where that makes it smaller."""
    values = source[()]
    if name == "dt_bias" and values.ndim == 1:
        values = values.reshape(heads, -1)[selection[0]].reshape(-1)
    else:
        for axis, chosen in enumerate(selection):
            values = np.take(values, chosen, axis=axis)
    space = h5py.h5s.create_simple(values.shape)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if values.size > 256:
        properties.set_chunk(values.shape)
        properties.set_shuffle()
        properties.set_deflate(9)
    dataset = h5py.h5d.create(target_group.id, name.encode(), source.id.get_type(), space, properties)
    h5py.Dataset(dataset)[...] = values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--batch", type=int, default=0, help="the batch row to keep")
    parser.add_argument("--value-heads", default="0", help="value heads to keep, of one query head, e.g. 0,1")
    parser.add_argument("--tokens", type=int, help="keep the first tokens; drops the final state")
    parser.add_argument("--sequences", help="of a packed batch: the sequences to keep, e.g. 0,3")
    arguments = parser.parse_args()

    with h5py.File(arguments.source, "r") as source, h5py.File(arguments.target, "w") as target:
        inputs = source["inputs"]
        query_heads, value_heads = inputs["q"].shape[2], inputs["v"].shape[2]
        kept = [int(head) for head in arguments.value_heads.split(",")]
        group = value_heads // query_heads
        kept_query = sorted({head // group for head in kept})
        if len(kept) != len(kept_query) * group and len(kept_query) != 1:
            raise SystemExit("keep whole groups of value heads, or heads of one group")
        rows = inputs["q"].shape[0]
        tokens = np.arange(arguments.tokens or inputs["q"].shape[1])
        states = np.array([arguments.batch])
        offsets = None
        if "cu_seqlens" in inputs:
            bounds = inputs["cu_seqlens"][()]
            chosen = [int(n) for n in (arguments.sequences or "0").split(",")]
            tokens = np.concatenate([np.arange(bounds[n], bounds[n + 1]) for n in chosen])
            offsets = np.concatenate([[0], np.cumsum([bounds[n + 1] - bounds[n] for n in chosen])])
            states = np.array(chosen)
        picks = {"b": np.array([min(arguments.batch, rows - 1)]), "t": tokens, "h": np.array(kept_query),
                 "j": np.array(kept), "n": states}

        def copy_all(source_group, target_group):
            for name, dataset in source_group.items():
                if name not in AXES or (name == "final_state" and arguments.tokens):
                    continue
                axes = AXES[name] if not (name == "dt_bias" and dataset.ndim == 1) else "j"
                selection = [picks.get(axis, np.arange(dataset.shape[i])) for i, axis in enumerate(axes)]
                copy_dataset(dataset, target_group, name, selection, value_heads)

        for key, value in source.attrs.items():
            target.attrs[key] = value
        target.attrs["name"] = source.attrs["name"] + "_cut"
        copy_all(inputs, target.create_group("inputs"))
        if offsets is not None:
            target["inputs"].create_dataset("cu_seqlens", data=offsets.astype(np.int64))
        options = target.create_group("options")
        for key, value in source["options"].attrs.items():
            options.attrs[key] = value
        for name, answers in source["expected"].items():
            cut = target.create_group(f"expected/{name}")
            for key, value in answers.attrs.items():
                cut.attrs[key] = value
            copy_all(answers, cut)
        provenance = target.create_group("provenance")
        provenance.attrs["cut_from"] = source.attrs["name"]
        provenance.attrs["value_heads"] = arguments.value_heads
        provenance.attrs["tokens"] = "first %d" % arguments.tokens if arguments.tokens else "all"
        if arguments.sequences:
            provenance.attrs["sequences"] = arguments.sequences


if __name__ == "__main__":
    main()
