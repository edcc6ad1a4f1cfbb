import glob
import os
import subprocess

import kda_check
import numpy as np
import pytest
from kda_check import Fixture, _options, _program, fixture
from kda_check._tensors import stored

HERE = os.path.dirname(os.path.abspath(__file__))
GOOD = sorted(glob.glob(os.path.join(HERE, "..", "fixtures_good", "*.h5")))
CASES = sorted(glob.glob(os.path.join(HERE, "..", "..", "cases", "*", "*.h5")))


def test_what_is_written_the_program_reads(problem, tmp_path):
    answer = {key: problem.pop(key) for key in ("o", "final_state", "compute")}
    fixture = Fixture.of(**problem, expected={"mine": answer}, initial_state=np.zeros((1, 2, 16, 8), np.float16),
                         description="täglich", provenance={"seed": 3, "by": None})
    fixture.write(tmp_path / "a.h5")
    shown = _program.run(["show", str(tmp_path / "a.h5")], reports=["json"]).reports["json"]
    assert '"inputs/initial_state"' in shown and '"fp16"' in shown and '"expected/mine/o"' in shown


def test_what_is_written_is_read_back_bit_for_bit(problem, tmp_path):
    answer = {key: problem.pop(key) for key in ("o", "final_state", "compute")}
    fixture = Fixture.of(**problem, cu_seqlens=[0, 5, 48], expected={"mine": {"o": answer["o"], "compute": "fp32"}},
                         name="täglich", qk_l2norm=True, lower_bound=-5)
    fixture.write(tmp_path / "a.h5")
    again = Fixture.read(tmp_path / "a.h5")
    assert (again.name, again.options, again.expected["mine"].about) == (fixture.name, fixture.options, {"compute": "fp32"})
    for name, tensor in {**fixture.inputs, **fixture.expected["mine"].tensors}.items():
        other = again.inputs.get(name) or again.expected["mine"].tensors[name]
        assert (other.dtype, other.shape, other.data.tobytes()) == (tensor.dtype, tensor.shape, tensor.data.tobytes())


@pytest.mark.parametrize("path", GOOD, ids=[os.path.basename(path) for path in GOOD])
def test_every_form_of_a_fixture_is_read(path):
    inputs = Fixture.read(path).inputs
    # Element i of tensor number n is -(i + n + 1) / 64 in all of these files.
    for n, name in enumerate(("q", "k", "v", "g", "beta")):
        values = inputs[name].numpy().astype(np.float64).ravel()
        assert np.array_equal(values, -(np.arange(values.size) + n + 1) / 64), name


@pytest.mark.parametrize("path", CASES, ids=[os.path.basename(path) for path in CASES])
def test_fixtures_of_the_program_are_read_as_h5py_reads_them(path):
    h5py = pytest.importorskip("h5py")
    fixture = Fixture.read(path)
    with h5py.File(path) as file:
        groups = {"inputs": fixture.inputs, **{f"expected/{who}": a.tensors for who, a in fixture.expected.items()}}
        for group, tensors in groups.items():
            assert set(tensors) == {name for name, item in file[group].items() if isinstance(item, h5py.Dataset)}
            for name, tensor in tensors.items():
                found = file[group][name]
                values = found[...]
                if found.attrs.get("dtype") == "bfloat16":  # as its bits
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                assert np.array_equal(np.asarray(tensor.numpy(), float), np.asarray(values, float), equal_nan=True), name


def test_a_file_of_a_new_form_is_refused_with_a_hint(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(GOOD[0]) as old, h5py.File(tmp_path / "new.h5", "w", libver="latest") as new:
        new.attrs["format"] = "kda-fixture"
        old.copy("inputs", new)
    with pytest.raises(kda_check.InputError, match="new.h5: a form of HDF5 that is not read here: .*libver"):
        Fixture.read(tmp_path / "new.h5")


def test_damage_is_one_clear_error(tmp_path):
    with open(GOOD[0], "rb") as file:
        whole = file.read()
    draw = np.random.default_rng(1)
    for i in range(300):
        damaged = bytearray(whole[: draw.integers(9, len(whole))] if i % 2 else whole)
        for at in draw.integers(8, len(damaged), 6):
            damaged[at] = draw.integers(0, 256)
        (tmp_path / "a.h5").write_bytes(damaged)
        try:
            Fixture.read(tmp_path / "a.h5")
        except kda_check.InputError as error:
            assert str(tmp_path) in str(error)


def test_a_file_that_is_no_fixture_is_refused_by_name(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(kda_check.InputError, match="a.npz: no HDF5 file"):
        Fixture.read(tmp_path / "a.npz")


def test_a_file_is_written_whole_or_not_at_all(problem, tmp_path):
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    fixture = Fixture.of(**words)
    fixture.inputs["q"].data = "no array"
    with pytest.raises(AttributeError):
        fixture.write(tmp_path / "a.h5")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("change, error, message", [
    ({"v": np.zeros((1, 47, 2, 8), np.float32)}, ValueError, r"v: shape \(1, 47, 2, 8\); wanted \[B,T,HV,V\]"),
    ({"beta": np.zeros((1, 48), np.float32)}, ValueError, "beta: shape"),
    ({"initial_state": np.zeros((1, 2, 8, 16), np.float32)}, ValueError, r"initial_state: .* wanted \[N,HV,K,V\]"),
    ({"q": [1.0]}, TypeError, "q: wanted a tensor"),
    ({"k": np.zeros((1, 48, 2, 16), np.int32)}, TypeError, "k: element type int32"),
    ({"cu_seqlens": [0.0, 48.0]}, TypeError, "cu_seqlens: wanted whole numbers"),
    ({"cu_seqlens": 48}, TypeError, "cu_seqlens: wanted whole numbers"),
    ({"cu_seqlens": [0, 1 << 70]}, TypeError, "cu_seqlens: wanted whole numbers"),
    ({"cu_seqlens": np.array([[0, 48]])}, TypeError, "cu_seqlens: wanted whole numbers"),
    ({"beta": None}, TypeError, "missing: beta"),
    ({"soft_cap": 3.0, "mask": None}, TypeError, "no place in a fixture for mask, soft_cap"),
], ids=lambda x: str(x)[:20])
def test_what_has_no_place_is_refused_by_name(problem, change, error, message):
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    with pytest.raises(error, match=message):
        Fixture.of(**{**words, **change})


def test_whatever_a_word_is_the_exception_is_a_documented_one(problem, tmp_path):
    x, given = problem["v"], {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    words = [*given, *fixture.INPUTS, *fixture.WHOLE_NUMBERS, *_options.OPTIONS, "expected", "name", "description", "provenance"]
    values = [-1, 0, 2.5, float("nan"), 10**400, -(2**70), "no", "", b"x", "\udcff", "a\0b", "x" * 300, [], [1], {}, (), object(),
              np.zeros(()), np.zeros(0), np.zeros((0, 0, 0, 0)), x[..., :0], np.arange(3), {"m": 3}, {"m": {"o": 3}}, {3: {"o": x}},
              {"": {"o": x}}, {"a" * 70000: 1}]
    refused = 0
    for word in words:
        for value in values:
            try:
                Fixture.of(**{**given, word: value}).write(tmp_path / "a.h5")
            except (TypeError, ValueError, kda_check.KdaCheckError) as error:
                assert str(error), (word, value)
                refused += 1
    assert refused > len(words) * len(values) / 2


def test_tensors_of_numpy_are_taken_as_they_lie():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.shares_memory(stored(array, "x").data, array)
    assert np.array_equal(stored(array.transpose(2, 0, 1), "x").data, array.transpose(2, 0, 1))
    assert np.array_equal(stored(array.astype(">f4"), "x").data, array)


def test_a_masked_array_is_refused():
    with pytest.raises(TypeError, match="x: a masked array, and masked elements have no place"):
        stored(np.ma.masked_array(np.zeros(3), mask=[0, 1, 0]), "x")


@pytest.mark.parametrize("name", ["none", "all", "oracle", "replay", "", ".", "a/b"])
def test_a_name_that_means_something_else_is_refused(problem, name):
    with pytest.raises(ValueError, match=f"'{name}' is no name for an answer"):
        kda_check.check(**problem, name=name)


def test_bfloat16_stays_what_it_is():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    tensor = torch.randn(3, 5).bfloat16().t().requires_grad_()
    for other in (tensor, jnp.asarray(tensor.detach().float().numpy(), jnp.bfloat16)):
        found = stored(other, "x")
        assert (found.dtype, found.shape) == ("bfloat16", (5, 3))
        assert torch.equal(found.torch(), tensor.detach())
        assert np.array_equal(np.asarray(found.numpy(), np.float32), tensor.detach().float().numpy())
        assert found.jax().dtype == jnp.bfloat16


def test_torch_tensors_of_every_kind_are_taken():
    torch = pytest.importorskip("torch")
    base = torch.randn(4, 6)
    for tensor in (torch.nn.Parameter(base), base.clone().requires_grad_() * 1, base[::1], base.expand(4, 6), base.half().double()):
        assert np.array_equal(stored(tensor, "x").data, tensor.detach().numpy())
    with pytest.raises(TypeError, match="x: its elements cannot be had"):
        stored(torch.empty(2, device="meta"), "x")
    with pytest.raises(TypeError, match="x: its elements cannot be had"):
        stored(base.to_sparse(), "x")


def test_anything_with_dlpack_is_taken():
    class Foreign:
        dtype = "float32"

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **words):
            return self.array.__dlpack__(**words)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    array = np.arange(6, dtype=np.float32)
    assert np.array_equal(stored(Foreign(array), "x").data, array)


def test_a_traced_array_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match="x: its elements cannot be had"):
        jax.jit(lambda x: stored(x, "x").data.sum())(np.zeros(3, np.float32))


def test_a_tensor_larger_than_any_memory_is_one_clear_error(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["format"] = "kda-fixture"
        file.create_dataset("inputs/q", (1 << 50, 1 << 8), "f4", chunks=(1, 16))
    with pytest.raises(kda_check.InputError, match="a.h5: no fixture, damaged or cut off: Unable to allocate"):
        Fixture.read(tmp_path / "a.h5")


def test_groups_in_groups_many_times_are_one_clear_error(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["format"] = "kda-fixture"
        for depth in range(7):
            for i in range(40):
                file[f"{depth}/{i}"] = file.require_group(str(depth + 1))
    with pytest.raises(kda_check.InputError, match="groups within groups without end"):
        Fixture.read(tmp_path / "a.h5")


def test_a_tensor_without_elements_is_written_as_the_library_reads_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    words = {"q": np.zeros((0, 8, 2, 4), np.float32), "beta": np.zeros((0, 8, 2), np.float32)}
    Fixture.of(**words, k=words["q"], v=words["q"], g=words["q"]).write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["inputs/q"].shape == (0, 8, 2, 4)
    assert Fixture.read(tmp_path / "a.h5").inputs["beta"].shape == (0, 8, 2)
    with pytest.raises(kda_check.InputError, match="an empty extent"):
        kda_check.check(words["q"], **words, k=words["q"], v=words["q"], g=words["q"])


def test_a_problem_of_any_name_has_a_file(problem):
    name = "<漢>/" * 60
    assert kda_check.check(**problem, name="mine").passed
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    report = kda_check.judge(Fixture.of(**words, name=name, expected={"mine": {"o": problem["v"]}}), known_as="here/")
    assert "kda-check run here/____" in report.repro


def test_lists_of_any_whole_numbers_are_offsets(problem):
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    for values in ([0, 48], (np.int32(0), np.int64(48)), np.array([0, 48], ">u2")):
        assert Fixture.of(**words, cu_seqlens=values).inputs["cu_seqlens"].data.tolist() == [0, 48]


def test_a_call_on_a_pool_is_what_the_program_reads(problem, tmp_path):
    rng = np.random.default_rng(3)
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    pool = rng.standard_normal((6, 2, 16, 8)).astype(np.float32)
    fixture = Fixture.of(**words, state_pool=pool, state_indices=[4], padding_slots="negative")
    fixture.write(tmp_path / "call.h5")
    subprocess.run([_program.find(), "capture", tmp_path / "call.h5", "--variant", "recurrent", "--in-place"], check=True)
    answer = Fixture.read(tmp_path / "call.h5").expected["recurrent@cpu"].tensors["state_pool"].numpy()
    assert (np.delete(answer, 4, 0) == np.delete(pool, 4, 0)).all()
    assert (answer[4] != pool[4]).any()
    with pytest.raises(ValueError, match="mine: no place for final_state; wanted state_pool"):
        fixture.add("mine", {"final_state": pool[:1]})
    with pytest.raises(TypeError, match="missing: state_pool or state_indices"):
        Fixture.of(**words, state_pool=pool)
