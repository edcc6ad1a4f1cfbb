import importlib

import kda_check
import numpy as np
import pytest
from kda_check import Unsupported
from kda_check._tensors import Stored


@pytest.mark.parametrize("framework, module, name", [("torch", "kernels", "chunk_kda"), ("jax", "jax_kernel", "jax_kda")])
def test_a_loss_of_a_state_that_is_not_answered_is_refused(framework, module, name):
    def alone(q, k, v, g, beta, scale=None):
        return kernel(q, k, v, g, beta, scale)[0]

    pytest.importorskip(framework)
    kernel = getattr(importlib.import_module(module), name)
    problem = kda_check.regime("control:T=16,H=1,K=8,V=8", loss=1)
    problem.inputs["dht"] = Stored(np.ones(problem.shape_of("final_state"), np.float32), "float32")
    with pytest.raises(Unsupported, match=r"the loss depends on final_state \(dht\), which the kernel does not answer"):
        kda_check.verify(alone, problem, backward=True, framework=framework, compute="fp32")
    assert kda_check.verify(kernel, problem, backward=True, framework=framework, compute="fp32")["dk"].passed
