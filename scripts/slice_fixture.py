#!/usr/bin/env python3
"""Cut a small fixture out of a large one, exactly: heads, batch rows and sequences do not see each other, and the first
tokens do not see the later ones. What is no longer true of the cut (the final state and the gradients of a shortened
run, stages, gradients of parameters when batch rows or sequences are dropped) is left out. Needs h5py.

    scripts/slice_fixture.py fla_bf16_gva.h5 out.h5 --value-heads 0,1 --tokens 48
    scripts/slice_fixture.py fla_bf16_layer.h5 out.h5 --gradients
"""
import argparse

import h5py
import numpy as np

AXES = {
    "q": "bthk", "k": "bthk", "v": "btjv", "g": "btjk", "beta": "btj", "A_log": "j", "dt_bias": "jk",
    "initial_state": "nj..", "o": "btjv", "final_state": "nj..",
}
GRADIENTS = {
    "do": "btjv", "dht": "nj..", "dq": "bthk", "dk": "bthk", "dv": "btjv", "dg": "btjk", "dbeta": "btj",
    "dinitial_state": "nj..",
}
OF_PARAMETERS = {"dA_log": "j", "ddt_bias": "jk"}


def copy_dataset(source, target_group, name, selection, heads):
    """Copies source[selection] with the element type of the source, deflated where that makes it smaller."""
    values = source[()]
    if name in ("dt_bias", "ddt_bias") and values.ndim == 1:
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
    parser.add_argument("--batch", default="0", help="the batch rows to keep, e.g. 0,1")
    parser.add_argument("--value-heads", default="0", help="value heads to keep, of one query head, e.g. 0,1")
    parser.add_argument("--tokens", type=int, help="keep the first tokens; drops the final state")
    parser.add_argument("--sequences", help="of a packed batch: the sequences to keep, e.g. 0,3")
    parser.add_argument("--gradients", action="store_true", help="keep do, dht and the gradients too")
    arguments = parser.parse_args()
    if arguments.gradients and arguments.tokens:
        raise SystemExit("the gradients of a shortened run are others")

    with h5py.File(arguments.source, "r") as source, h5py.File(arguments.target, "w") as target:
        inputs = source["inputs"]
        query_heads, value_heads = inputs["q"].shape[2], inputs["v"].shape[2]
        kept = [int(head) for head in arguments.value_heads.split(",")]
        group = value_heads // query_heads
        kept_query = sorted({head // group for head in kept})
        if len(kept) != len(kept_query) * group and len(kept_query) != 1:
            raise SystemExit("keep whole groups of value heads, or heads of one group")
        if arguments.gradients and len(kept) != len(kept_query) * group:
            raise SystemExit("dq and dk are sums over whole groups of value heads")
        rows = inputs["q"].shape[0]
        batch = np.array([int(row) for row in arguments.batch.split(",")])
        axes_of = dict(AXES)
        if arguments.gradients:
            axes_of.update(GRADIENTS)
            if rows == len(batch) and not arguments.sequences:
                axes_of.update(OF_PARAMETERS)
        tokens = np.arange(arguments.tokens or inputs["q"].shape[1])
        states = batch
        offsets = None
        if "cu_seqlens" in inputs:
            bounds = inputs["cu_seqlens"][()]
            chosen = [int(n) for n in (arguments.sequences or "0").split(",")]
            tokens = np.concatenate([np.arange(bounds[n], bounds[n + 1]) for n in chosen])
            offsets = np.concatenate([[0], np.cumsum([bounds[n + 1] - bounds[n] for n in chosen])])
            states = np.array(chosen)
        picks = {"b": batch, "t": tokens, "h": np.array(kept_query),
                 "j": np.array(kept), "n": states}

        def copy_all(source_group, target_group):
            for name, dataset in source_group.items():
                if name not in axes_of or (name == "final_state" and arguments.tokens):
                    continue
                flat = name in ("dt_bias", "ddt_bias") and dataset.ndim == 1
                axes = "j" if flat else axes_of[name]
                selection = [picks.get(axis, np.arange(dataset.shape[i])) for i, axis in enumerate(axes)]
                copy_dataset(dataset, target_group, name, selection, value_heads)

        for key, value in source.attrs.items():
            target.attrs[key] = value
        target.attrs["name"] = source.attrs["name"] + ("_backward" if arguments.gradients else "_cut")
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
