#!/usr/bin/env python3
"""Writes the files of this folder: fixtures with one defect each, and expected.tsv, what the reader must say of them.
Run by hand (needs h5py); the files are committed, so that the tests depend on nobody's HDF5 but their reader's."""
import os

import h5py
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
B, T, H, HV, K, V = 1, 3, 1, 1, 4, 5
SHAPES = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, HV, V), "g": (B, T, HV, K), "beta": (B, T, HV)}
EXPECTED = []


def values(shape, dtype=np.float32):
    return -np.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape).astype(dtype)


def good(file):
    file.attrs["format"] = "kda-fixture"
    file.attrs["format_version"] = 1
    file.attrs["name"] = "tiny"
    file.attrs["description"] = "one defect"
    for name, shape in SHAPES.items():
        file[f"inputs/{name}"] = values(shape)
    options = file.create_group("options")
    options.attrs["scale"] = 0.5
    options.attrs["chunk_size"] = 64
    options.attrs["gate"] = "none"
    for flag in ("qk_l2norm", "beta_sigmoid", "allow_neg_eigval", "state_v_first", "safe_gate"):
        options.attrs[flag] = np.uint8(0)
    answers = file.create_group("expected/somebody")
    answers.attrs["compute"] = "fp32"
    answers["o"] = values(SHAPES["v"])


def replace(file, name, data):
    if name in file:
        del file[name]
    file[name] = data


def bad(name, message, change):
    path = os.path.join(HERE, name + ".h5")
    with h5py.File(path, "w") as file:
        good(file)
        change(file)
    EXPECTED.append((name + ".h5", message))


def raw(name, message, data):
    with open(os.path.join(HERE, name + ".h5"), "wb") as file:
        file.write(data)
    EXPECTED.append((name + ".h5", message))


def setattr_on(group, key, value):
    def change(file):
        file[group].attrs[key] = value
    return change


def delattr_on(group, key):
    def change(file):
        del file[group].attrs[key]
    return change


def put(name, data):
    return lambda file: replace(file, name, data)


def drop(name):
    def change(file):
        del file[name]
    return change


def rename_group(name):
    return lambda file: file.move("expected/somebody", "expected/" + name)


def external_link(file):
    del file["inputs/q"]
    file["inputs/q"] = h5py.ExternalLink("elsewhere.h5", "/inputs/q")


def external_group(file):
    file["expected/elsewhere"] = h5py.ExternalLink("elsewhere.h5", "/expected/fla_chunk")


def soft_link_to_external(file):
    file["away"] = h5py.ExternalLink("elsewhere.h5", "/inputs")
    del file["inputs/q"]
    file["inputs/q"] = h5py.SoftLink("/away/q")


def dangling_link(file):
    del file["inputs/q"]
    file["inputs/q"] = h5py.SoftLink("/nowhere")


def virtual_dataset(file):
    layout = h5py.VirtualLayout(shape=SHAPES["q"], dtype=np.float32)
    layout[:] = h5py.VirtualSource("elsewhere.h5", "inputs/q", shape=SHAPES["q"])
    del file["inputs/q"]
    file.create_virtual_dataset("inputs/q", layout)


def external_storage(file):
    del file["inputs/q"]
    file.create_dataset("inputs/q", SHAPES["q"], np.float32, external=[("elsewhere.raw", 0, 4 * 12)])


def lzf_filter(file):
    del file["inputs/q"]
    file.create_dataset("inputs/q", data=values(SHAPES["q"]), chunks=SHAPES["q"], compression="lzf")


def huge(file):
    del file["inputs/q"]
    file.create_dataset("inputs/q", (1 << 20, 1 << 20, 16, 128), np.float32, chunks=(1, 1, 1, 128))


def beyond_size_t(file):
    del file["inputs/q"]
    file.create_dataset("inputs/q", (1 << 30, 1 << 30, 1 << 10, 4), np.float32, chunks=(1, 1, 1, 4))


def never_written(file):
    del file["inputs/q"]
    file.create_dataset("inputs/q", SHAPES["q"], np.float32)


def partly_written(file):
    del file["inputs/q"]
    dataset = file.create_dataset("inputs/q", SHAPES["q"], np.float32, chunks=(1, 1, 1, 4))
    dataset[0, 0] = 1


def x87_type(file):
    replace(file, "inputs/v", values(SHAPES["v"]).astype(np.longdouble))


def packed(offsets, dtype=np.int64):
    return lambda file: replace(file, "inputs/cu_seqlens", np.array(offsets, dtype))


def packed_batch(file):
    for name, shape in SHAPES.items():
        replace(file, f"inputs/{name}", values((2,) + shape[1:]))
    replace(file, "expected/somebody/o", values((2,) + SHAPES["v"][1:]))
    replace(file, "inputs/cu_seqlens", np.array([0, 3]))


def heads(file):
    for name in ("q", "k"):
        replace(file, f"inputs/{name}", values((B, T, 2, K)))
    for name, width in (("v", (V,)), ("g", (K,)), ("beta", ())):
        replace(file, f"inputs/{name}", values((B, T, 3) + width))


def gate(kind, **more):
    def change(file):
        file["options"].attrs["gate"] = kind
        for key, value in more.items():
            if key == "lower_bound":
                file["options"].attrs[key] = value
            else:
                file[f"inputs/{key}"] = value
    return change


def asking(tokens=None, sequence=None, answer=None, **options):
    """For states inside the sequence."""
    def change(file):
        for name, data in (("checkpoint_tokens", tokens), ("checkpoint_sequence", sequence)):
            if data is not None:
                file[f"inputs/{name}"] = np.asarray(data)
        if answer is not None:
            file["expected/somebody/checkpoints"] = values((answer, HV, K, V))
        file["options"].attrs.update(options)
    return change


def ring(*gone, indices=(1,), answer=None, **changed):
    """A call of one sequence behind rings of five rows."""
    shapes = {"ring_k": (H, K), "ring_v": (HV, V), "ring_g": (HV, K), "ring_beta": (HV,)}
    inputs = {**{key: values((4, 5, *shape)) for key, shape in shapes.items()}, "ring_length": np.array([2]), **changed}
    return pool(np.array(indices), answer, **{key: data for key, data in inputs.items() if key not in gone})


def codes(dtype=np.int8, scale=(4, HV, K, 1), answer=None, **more):
    """A call of one sequence on a pool of codes."""
    def change(file):
        pool(np.array([1]), answer, **{"state_scale": values(scale), **more})(file)
        replace(file, "inputs/state_pool", np.ones((4, HV, K, V), dtype))
    return change


def pool(indices, answer=None, **more):
    """A call of one sequence on a pool of four slots."""
    def change(file):
        file["inputs/state_pool"] = values((4, HV, K, V))
        if indices is not None:
            file["inputs/state_indices"] = indices
        for key, data in more.items():
            if key in ("padding_slots", "ring_flush", "largest_code", "code_rounding", "code_seed"):
                file["options"].attrs[key] = data
            else:
                file[f"inputs/{key}"] = data
        if answer is not None:
            file[f"expected/somebody/{answer[0]}"] = answer[1]
    return change


def main():
    with h5py.File(os.path.join(HERE, "good.h5"), "w") as file:
        good(file)
    with open(os.path.join(HERE, "good.h5"), "rb") as file:
        whole = file.read()

    raw("not_hdf5", "the file is not HDF5", b"This is text, not HDF5.\n" * 10)
    raw("empty_file", "is empty", b"")
    raw("truncated_superblock", "HDF5", whole[:40])
    raw("truncated_half", "truncated", whole[: len(whole) // 2])
    raw("truncated_last_byte", "truncated", whole[:-1])

    bad("wrong_format", 'format is "other"; wanted "kda-fixture"', setattr_on("/", "format", "other"))
    bad("missing_format", "no attribute format", delattr_on("/", "format"))
    bad("format_is_a_number", "attribute format of / is a number", setattr_on("/", "format", 7))
    bad("newer_version", "format_version is 2; this kda-check reads up to 1", setattr_on("/", "format_version", 2))
    bad("missing_version", "no attribute format_version", delattr_on("/", "format_version"))
    bad("version_is_text", "attribute format_version of / is a string", setattr_on("/", "format_version", "1"))

    bad("missing_inputs", "no group inputs", drop("inputs"))
    for name in SHAPES:
        bad(f"missing_{name}", f"inputs/{name} is missing", drop(f"inputs/{name}"))
    bad("dangling_link", "inputs/q is missing", dangling_link)
    bad("q_is_a_group", "inputs/q is not a dataset", lambda f: (drop("inputs/q")(f), f.create_group("inputs/q")))

    bad("q_rank_3", "inputs/q is [1,3,4], of rank 3", put("inputs/q", values((1, 3, 4))))
    bad("beta_rank_2", "inputs/beta is [1,3], of rank 2", put("inputs/beta", values((1, 3))))
    bad("beta_column_extent", "inputs/beta is [1,3,1,4] but inputs/v says V = 5", put("inputs/beta", values((1, 3, 1, 4))))
    bad("erase_alone", "inputs/write is missing", lambda f: (drop("inputs/beta")(f), put("inputs/erase", values((1, 3, 1, 4)))(f)))
    bad("erase_and_beta", "inputs/beta and inputs/erase are both there", put("inputs/erase", values((1, 3, 1, 4))))
    bad("q_scalar", "inputs/q is [], of rank 0", put("inputs/q", np.float32(1)))
    bad("k_extent", "inputs/k is [1,3,1,5] but inputs/q is [1,3,1,4]", put("inputs/k", values((1, 3, 1, 5))))
    bad("g_extent", "inputs/g is [1,3,1,7] but inputs/q says K = 4", put("inputs/g", values((1, 3, 1, 7))))
    bad("v_tokens", "inputs/v is [1,2,1,5] but inputs/q says T = 3", put("inputs/v", values((1, 2, 1, 5))))
    bad("beta_heads", "inputs/beta is [1,3,2] but inputs/v says HV = 1", put("inputs/beta", values((1, 3, 2))))
    bad("heads_no_multiple", "HV = 3 is no multiple of H = 2", heads)
    bad("empty_extent", "an empty extent", put("inputs/beta", values((1, 0, 1))))
    bad("A_log_extent", "inputs/A_log is [2]; wanted [1]", gate("softplus", A_log=values((2,))))
    bad("dt_bias_per_head", "inputs/dt_bias is [1]; wanted [4]", gate("softplus", A_log=values((1,)), dt_bias=values((1,))))
    bad("state_layout", "the other state layout", put("inputs/initial_state", values((1, 1, V, K))))
    bad("state_count", "inputs/initial_state is [2,1,4,5]; wanted [1,1,4,5]", put("inputs/initial_state", values((2, 1, K, V))))
    bad("expected_extent", "expected/somebody/o is [1,3,1,4]; wanted [1,3,1,5]", put("expected/somebody/o", values((1, 3, 1, 4))))
    bad("expected_state_layout", "the other state layout", put("expected/somebody/final_state", values((1, 1, V, K))))
    bad("stage_extent", "expected/somebody/stages/w is [1,3,1,9]; wanted [1,3,1,4]", put("expected/somebody/stages/w", values((1, 3, 1, 9))))

    bad("q_integers", "inputs/q holds 32-bit integer", put("inputs/q", np.ones(SHAPES["q"], np.int32)))
    bad("q_untagged_16_bit", "inputs/q holds 16-bit unsigned integer", put("inputs/q", np.ones(SHAPES["q"], np.uint16)))
    bad("q_strings", "inputs/q holds string", put("inputs/q", np.full(SHAPES["q"], b"x")))
    bad("q_complex", "inputs/q holds compound", put("inputs/q", values(SHAPES["q"]).astype(np.complex64)))
    bad("v_long_double", "inputs/v holds a float type of 16 bytes", x87_type)

    bad("cu_seqlens_start", "cu_seqlens starts at 1; wanted 0", packed([1, 3]))
    bad("cu_seqlens_end", "cu_seqlens ends at 2 but inputs/q says T = 3", packed([0, 2]))
    bad("cu_seqlens_decreases", "cu_seqlens decreases from 2 to 1", packed([0, 2, 1, 3]))
    bad("cu_seqlens_floats", "cu_seqlens holds fp64; wanted integers", packed([0, 3], np.float64))
    bad("cu_seqlens_short", "wanted N + 1 >= 2", packed([0]))
    bad("cu_seqlens_rank", "inputs/cu_seqlens is [1,2]; wanted [N+1]", packed([[0, 3]]))
    bad("cu_seqlens_batch", "wanted B = 1 for a packed batch", packed_batch)

    bad("pool_without_table", "inputs/state_indices is missing; wanted it beside inputs/state_pool", pool(None))
    bad("pool_missing", "inputs/state_indices is there but inputs/state_pool is missing", put("inputs/state_indices", np.array([1])))
    bad("pool_table_floats", "inputs/state_indices holds fp64; wanted integers", pool(np.array([1.0])))
    bad("pool_table_rank", "inputs/state_indices is [1,1,1]; wanted [N] or [N,S]", pool(np.array([[[1]]])))
    bad("pool_table_extent", "inputs/state_indices has 2 entries; wanted 1 for 1 sequences", pool(np.array([1, 2])))
    bad("pool_slot_beyond", "inputs/state_indices[0] is 4; wanted 0..3", pool(np.array([4])))
    bad("pool_slot_negative", "inputs/state_indices[0] is -1; wanted 0..3", pool(np.array([-1], np.int32)))
    bad("pool_columns", "inputs/state_indices has 2 columns but sequence 0 has 3 tokens", pool(np.array([[1, 2]])))
    bad("pool_accepted", "inputs/num_accepted_tokens[0] is 4; wanted 1..3", pool(np.array([[1, 2, 3]]), num_accepted_tokens=np.array([4])))
    bad("pool_accepted_alone", "inputs/num_accepted_tokens is there but inputs/state_indices is [N]", pool(np.array([1]), num_accepted_tokens=np.array([1])))
    bad("flags_alone", "inputs/has_initial_state is there but inputs/initial_state and inputs/state_pool are missing", put("inputs/has_initial_state", np.array([0], np.uint8)))
    bad("flags_extent", "inputs/has_initial_state has 2 entries; wanted 1, one a sequence", pool(np.array([1]), has_initial_state=np.array([True, False])))
    bad("flags_no_flags", "inputs/has_initial_state[0] is 17; wanted 0 or 1", pool(np.array([1]), has_initial_state=np.array([17])))
    bad("flags_floats", "inputs/has_initial_state holds fp64; wanted integers", pool(np.array([1]), has_initial_state=np.array([1.0])))
    bad("flags_and_loss", "inputs/do is there beside inputs/has_initial_state", lambda f: [put(f"inputs/{key}", x)(f) for key, x in (("has_initial_state", np.array([0])), ("initial_state", values((1, HV, K, V))), ("do", values(SHAPES["v"])))])
    bad("pool_padding_word", 'options/padding_slots is "negativ"; wanted one of none, negative, nonpositive, negative_tokens', pool(np.array([1]), padding_slots="negativ"))
    bad("pool_padding_alone", "padding alone", pool(np.array([0]), padding_slots="nonpositive"))
    bad("pool_layout", "inputs/state_pool is [4,1,5,4], the other state layout", lambda f: (pool(np.array([1]))(f), replace(f, "inputs/state_pool", values((4, HV, V, K)))))
    bad("pool_and_state", "inputs/initial_state is there beside inputs/state_pool", pool(np.array([1]), initial_state=values((1, HV, K, V))))
    bad("pool_and_loss", "inputs/do is there beside inputs/state_pool", pool(np.array([1]), do=values(SHAPES["v"])))
    bad("pool_answer_state", "expected/somebody/final_state is there but this is a call on a pool", pool(np.array([1]), ("final_state", values((1, HV, K, V)))))
    bad("pool_answer_slots", "expected/somebody/state_pool is [3,1,4,5] but inputs/state_pool is [4,1,4,5]", pool(np.array([1]), ("state_pool", values((3, HV, K, V)))))
    bad("pool_answer_dtype", "expected/somebody/state_pool is in fp64 but inputs/state_pool is in fp32", pool(np.array([1]), ("state_pool", values((4, HV, K, V)).astype(np.float64))))
    bad("pool_answer_alone", "expected/somebody/state_pool is there but inputs/state_pool is missing", put("expected/somebody/state_pool", values((4, HV, K, V))))

    bad("checkpoint_beyond", "inputs/checkpoint_tokens[1] is 4 but sequence 0 has 3 tokens", asking([1, 4]))
    bad("checkpoint_negative", "inputs/checkpoint_tokens[0] is -1; wanted at least 0", asking([-1]))
    bad("checkpoint_floats", "inputs/checkpoint_tokens holds fp64; wanted integers", asking([1.0]))
    bad("checkpoint_sequence_beyond", "inputs/checkpoint_sequence[0] is 1; wanted 0..0", asking([1], [1]))
    bad("checkpoint_counts", "inputs/checkpoint_sequence has 1 entries but inputs/checkpoint_tokens has 2", asking([1, 2], [0]))
    bad("checkpoint_tokens_missing", "inputs/checkpoint_tokens is missing", asking(None, [0]))
    bad("checkpoint_twice", "inputs/checkpoint_tokens and options/checkpoint_every are both there", asking([1], checkpoint_every=1, checkpoint_side="after"))
    bad("checkpoint_side_missing", "options/checkpoint_side is missing beside options/checkpoint_every", asking(checkpoint_every=1))
    bad("checkpoint_side_word", 'options/checkpoint_side is "behind"; wanted before or after', asking(checkpoint_every=1, checkpoint_side="behind"))
    bad("checkpoint_every_zero", "options/checkpoint_every is 0; wanted at least 1", asking(checkpoint_every=0, checkpoint_side="after"))
    bad("checkpoint_answer_alone", "expected/somebody/checkpoints is there but nothing says of which tokens", asking(answer=1))
    bad("checkpoint_answer_count", "expected/somebody/checkpoints is [1,1,4,5]; wanted 2 checkpoints", asking([1, 2], answer=1))
    bad("checkpoint_and_pool", "inputs/checkpoint_tokens is there beside inputs/state_pool", lambda f: (pool(np.array([1]))(f), asking([1])(f)))

    bad("ring_alone", "inputs/ring_k is there but inputs/state_pool is missing", put("inputs/ring_k", values((4, 5, H, K))))
    bad("ring_length_alone", "inputs/ring_length is there but inputs/ring_k is missing", pool(np.array([1]), ring_length=np.array([2])))
    bad("ring_length_missing", "inputs/ring_length is missing beside inputs/ring_k", ring("ring_length"))
    bad("ring_gate_missing", "inputs/ring_g is missing beside inputs/ring_k", ring("ring_g"))
    bad("ring_both", "inputs/ring_v is there beside inputs/ring_u; wanted either", ring(ring_u=values((4, 5, HV, V))))
    bad("ring_slots", "inputs/ring_v is [3,5,1,5]; wanted 4 slots, as inputs/state_pool has, and 5 rows", ring(ring_v=values((3, 5, HV, V))))
    bad("ring_rows", "inputs/ring_g is [4,6,1,4]; wanted 4 slots, as inputs/state_pool has, and 5 rows", ring(ring_g=values((4, 6, HV, K))))
    bad("ring_length_beyond", "inputs/ring_length[0] is 6; wanted 0..5, as a ring has 5 rows", ring(ring_length=np.array([6])))
    bad("ring_length_entries", "inputs/ring_length has 2 entries; wanted 1, one a sequence", ring(ring_length=np.array([1, 2])))
    bad("ring_base_beyond", "inputs/ring_base[0] is 5; wanted 0..4", ring(ring_base=np.array([5])))
    bad("ring_full", "sequence 0 has 3 tokens, and 3 of the 5 rows of its ring hold others", ring(ring_length=np.array([3])))
    bad("ring_columns", "inputs/state_indices is [N,S] beside a ring; wanted [N]", ring(indices=np.array([[1, 2, 3]])))
    bad("ring_outputs", "inputs/output_indices is there beside a ring", ring(output_indices=np.array([1])))
    bad("ring_flush_negative", "options/ring_flush is -1; wanted at least 0", ring(ring_flush=-1))
    bad("ring_answer_dtype", "expected/somebody/ring_k is in fp64 but inputs/ring_k is in fp32", ring(answer=("ring_k", values((4, 5, H, K)).astype(np.float64))))

    bad("codes_without_scale", "inputs/state_pool is in int8 and inputs/state_scale is missing", lambda f: (codes()(f), f.pop("inputs/state_scale")))
    bad("scale_without_codes", "inputs/state_pool is in fp32 and inputs/state_scale is there", codes(np.float32))
    bad("scale_alone", "inputs/state_scale is there but inputs/state_pool is missing", put("inputs/state_scale", values((4, HV, K, 1))))
    bad("scale_blocks", "inputs/state_scale is [4,1,3,1] but inputs/state_pool is [4,1,4,5]", codes(scale=(4, HV, 3, 1)))
    bad("scale_dtype", "inputs/state_scale is in fp16; wanted fp32", codes(state_scale=values((4, HV, K, 1), np.float16)))
    bad("codes_unsigned", "inputs/state_pool holds 8-bit unsigned integer", codes(np.uint8))
    bad("codes_rounding", 'options/code_rounding is "random"; wanted one of nearest, stochastic', codes(code_rounding="random"))
    bad("codes_seed", 'options/code_seed is there; wanted it beside code_rounding = "stochastic" and codes', codes(code_seed=3))
    bad("codes_drawn_fp32", 'options/code_rounding is "stochastic" but inputs/state_pool is in fp32', pool(np.array([1]), code_rounding="stochastic"))
    bad("codes_largest", "options/largest_code is 128; wanted 0 (scales are fixed) to 127", codes(largest_code=128.0))
    bad("codes_source", "inputs/state_source is there beside inputs/state_scale", codes(state_source=values((4, HV, K, V))))
    bad("codes_answer_dtype", "expected/somebody/state_pool is in int16 but inputs/state_pool is in int8", codes(answer=("state_pool", np.zeros((4, HV, K, V), np.int16))))
    bad("codes_answer_alone", "expected/somebody has one of state_pool and state_scale", codes(answer=("state_pool", np.zeros((4, HV, K, V), np.int8))))
    bad("foreign_ring", "inputs/hist_len is a ring of writes by another name than ring_k, ring_v or ring_u, ring_g, ring_beta, ring_length, which the format has no place for", put("inputs/hist_len", np.array([3], np.int32)))

    bad("external_link", "a link into another file", external_link)
    bad("external_group", "a link into another file", external_group)
    bad("soft_link_to_external", "inputs/q is missing", soft_link_to_external)
    bad("virtual_dataset", "a virtual dataset", virtual_dataset)
    bad("external_storage", "keeps its data in another file", external_storage)
    bad("lzf_filter", "which is not built in", lzf_filter)
    bad("huge", "the memory budget is", huge)
    bad("beyond_size_t", "more elements than memory has bytes", beyond_size_t)
    bad("never_written", "was never written", never_written)
    bad("partly_written", "only partly written: 1 of 3 chunks", partly_written)

    bad("gate_unknown", 'options/gate is "sofplus"; wanted none, softplus or lower_bound', gate("sofplus"))
    bad("softplus_without_A_log", "inputs/A_log is missing", gate("softplus"))
    bad("lower_bound_missing", "options/lower_bound is missing", gate("lower_bound"))
    bad("lower_bound_positive", "wanted a negative number", gate("lower_bound", lower_bound=5.0))
    bad("chunk_size_zero", "options/chunk_size is 0", setattr_on("options", "chunk_size", 0))
    bad("chunk_size_real", "attribute chunk_size of options is a floating-point number", setattr_on("options", "chunk_size", 64.0))
    bad("flag_two", "options/qk_l2norm is 2; wanted 0 or 1", setattr_on("options", "qk_l2norm", 2))
    bad("flag_array", "attribute qk_l2norm of options is an array", setattr_on("options", "qk_l2norm", [0, 1]))
    bad("scale_not_finite", "options/scale is nan; wanted a finite number", setattr_on("options", "scale", np.nan))
    bad("scale_text", "attribute scale of options is a string", setattr_on("options", "scale", "0.5"))
    bad("neg_eigval_alone", "options/beta_sigmoid is 0", setattr_on("options", "allow_neg_eigval", 1))
    bad("compute_unknown", 'attribute compute of expected/somebody is "fp8"', setattr_on("expected/somebody", "compute", "fp8"))

    bad("group_named_oracle", "expected/oracle has a name that means something else", rename_group("oracle"))
    bad("group_named_replay", "expected/replay has a name that means something else", rename_group("replay"))
    bad("group_named_all", "expected/all has a name that means something else", rename_group("all"))
    bad("group_named_none", "expected/none has a name that means something else", rename_group("none"))

    with open(os.path.join(HERE, "expected.tsv"), "w") as table:
        for row in EXPECTED:
            table.write("\t".join(row) + "\n")


if __name__ == "__main__":
    main()
