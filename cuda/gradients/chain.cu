// What the forward pass made of q, k and g is made again.
#include "cuda/gradients/chain.cuh"

namespace kda_check::cuda {

namespace {

template <class T>
__global__ void __launch_bounds__(state_threads)
    store_initial_gradient(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ TokenGradients<T> work) {
  const int blocks = state_blocks(p), number = static_cast<int>(blockIdx.x) / blocks, local = blockIdx.y,
            element = static_cast<int>(blockIdx.x) % blocks * state_threads + static_cast<int>(threadIdx.x);
  if (element >= p.K * p.V) return;
  const MutableTensor& to = p.gradients[static_cast<int>(Gradient::dinitial_state)];
  store(work.initial_gradient[work.state(number, local, p) + element], to.data, to.dtype,
        state_element(p, std::size_t(number) * p.HV + work.first_head + local, element / p.V, element % p.V));
}

}  // namespace

template <class T>
void launch_backward_chain(bool is_fused, const DeviceProblem& p, const TokenGradients<T>& work) {
  if (is_fused)
    launch_chain<true>(p, work, MadeAgain<T, true>{});
  else
    launch_chain<false>(p, work, MadeAgain<T, false>{});
  if (work.initial_gradient != nullptr)
    launch("backwards, initial state", store_initial_gradient<T>,
           dim3(state_blocks(p) * work.sequence_count, work.heads), state_threads, 0, p, work);
}
template void launch_backward_chain<float>(bool, const DeviceProblem&, const TokenGradients<float>&);
template void launch_backward_chain<double>(bool, const DeviceProblem&, const TokenGradients<double>&);

}  // namespace kda_check::cuda
