// The kernels behind row_errors.hpp: sixteen threads a row, as many rows a block as a tile has. A row's sums
// are those of the CPU: one of every sixteen columns, then lane after lane.
#include "cuda/spread/row_errors.hpp"

#include <list>
#include <utility>
#include <vector>

#include "cuda/device/launch.cuh"
#include "cuda/device/memory.hpp"
#include "cuda/device/stream.hpp"
#include "cuda/spread/row_errors.cuh"

namespace kda_check::cuda {

namespace {

using kda::Numbers;
using kda::RowTensor;

template <class Number>
Numbers<Number> downloaded(const DeviceMemory& memory) {
  Numbers<Number> numbers(memory.size() / sizeof(Number));
  memory.download(numbers.values.get(), memory.size());
  return numbers;
}
template <class Number>
DeviceMemory room_for(const char* name, std::size_t count) {
  return DeviceMemory(name, count * sizeof(Number));
}

class RowErrors : public kda::RowErrorSums {
 public:
  explicit RowErrors(kda::RowErrorRequest request) : r_(std::move(request)) {
    p_.rows = static_cast<int>(r_.rows), p_.heads = static_cast<int>(r_.heads);
    p_.width = static_cast<int>(r_.width);
    p_.across = static_cast<int>((r_.width + row_lanes - 1) / row_lanes);
    p_.fields = static_cast<int>(r_.fields.size()), p_.directions = static_cast<int>(r_.directions.size());
    p_.largest_error = r_.largest_error, p_.largest_excess = r_.largest_excess;
    p_.storage_unit = r_.storage_unit, p_.per_step = 1 / r_.step;
    p_.truth = placed(r_.truth);
    for (const RowTensor& field : r_.fields) fields_.push_back(placed(field));
    for (const RowTensor& direction : r_.directions) directions_.push_back(placed(direction));
    p_.field = uploaded("fields", fields_), p_.direction = uploaded("directions", directions_);
    p_.tile_rows = uploaded("rows of tiles", r_.tile_rows);
    p_.tile_row_count = static_cast<int>(r_.tile_rows.size()) - 1;
  }

  Numbers<double> largest() override {
    const DeviceMemory found = room_for<double>("largest", r_.heads * r_.rows);
    launch_rows("largest values of rows", largest_kernel, 1, found.as<double>());
    return done<double>(found);
  }

  kda::RowProducts products(std::span<const double> units) override {
    units_ = DeviceMemory("units of rows", units.size_bytes());
    units_.upload(units.data());
    p_.units = units_.as<const double>();
    const std::size_t all = r_.heads * r_.rows, of_fields = r_.fields.size() * all;
    const DeviceMemory truth = room_for<double>("truth of rows", all),
                       squares = room_for<float>("squares of rows", of_fields),
                       along = room_for<float>("slopes of rows", of_fields);
    launch_rows("truth of rows", truth_squares_kernel, 1, truth.as<double>());
    launch_rows("products of rows", products_kernel, p_.fields, squares.as<float>(), along.as<float>());
    kda::RowProducts products;
    products.truth = done<double>(truth);
    products.squares = downloaded<float>(squares), products.along = downloaded<float>(along);
    return products;
  }

  kda::RowSumsOfEnvelopes sums(std::span<const float> weights, std::span<const float> of_all) override {
    DeviceMemory uploaded_weights("weights", weights.size_bytes()), slopes("weights", of_all.size_bytes());
    uploaded_weights.upload(weights.data()), slopes.upload(of_all.data());
    p_.weights = uploaded_weights.as<const float>(), p_.weights_along = slopes.as<const float>();
    const std::size_t all = r_.heads * r_.rows, of_fields = r_.fields.size() * all,
                      stride = static_cast<std::size_t>(p_.stride()), pieces = count_of(p_.rows, column_rows),
                      columns = r_.fields.size() * r_.heads * stride,
                      tiles = static_cast<std::size_t>(p_.tiles_of_head()) * r_.heads * r_.fields.size(),
                      sixteens = count_of(p_.rows, row_lanes), n = r_.directions.size();
    const DeviceMemory row_truth = room_for<float>("row_truth", all),
                       column_truth = room_for<double>("column_truth", r_.heads * stride),
                       row_energy = room_for<float>("row_energy", of_fields),
                       row_along = room_for<float>("row_along", of_fields),
                       of_tiles =
                           room_for<float>("rows of tiles", of_fields * static_cast<std::size_t>(p_.across)),
                       largest =
                           room_for<kda::LargestElement>("largest", r_.fields.size() * r_.heads * sixteens),
                       pieces_energy = room_for<float>("columns", columns * pieces),
                       pieces_along = room_for<float>("columns", columns * pieces),
                       column_energy = room_for<double>("column_energy", columns),
                       column_along = room_for<double>("column_along", columns),
                       tile_energy = room_for<double>("tile_energy", tiles),
                       squares = room_for<float>("squares of directions", n * all),
                       truth = room_for<float>("truth of directions", n * all),
                       is_finite = room_for<int>("directions", n * r_.heads),
                       along = room_for<float>("slopes of directions", n * of_fields);
    launch_rows("sums of rows", sums_kernel, p_.fields, row_energy.as<float>(), row_along.as<float>(),
                of_tiles.as<float>(), largest.as<kda::LargestElement>());
    launch_rows("truth of rows", row_truth_kernel, 1, row_truth.as<float>());
    launch_on(stream_.get(), "sums of columns", columns_kernel,
              dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(p_.heads),
                   static_cast<unsigned>(p_.fields)),
              column_threads, 0, p_, pieces_energy.as<float>(), pieces_along.as<float>());
    launch_each("truth of columns", column_truth_kernel, r_.heads * stride, column_truth.as<double>());
    launch_each("sums of columns", fold_columns_kernel, columns, pieces_energy.as<const float>(),
                pieces_along.as<const float>(), column_energy.as<double>(), column_along.as<double>());
    launch_each("sums of tiles", fold_tiles_kernel, tiles, of_tiles.as<const float>(),
                tile_energy.as<double>());
    if (n > 0) {
      check(cudaMemsetAsync(is_finite.data(), 1, is_finite.size(), stream_.get()), "filling memory");
      launch_rows("directions", directions_kernel, p_.directions, squares.as<float>(), truth.as<float>(),
                  is_finite.as<int>());
      launch_rows("directions", along_directions_kernel, p_.fields * p_.directions, along.as<float>());
    }
    kda::RowSumsOfEnvelopes sums;
    sums.row_truth = done<float>(row_truth), sums.column_truth = downloaded<double>(column_truth);
    sums.row_energy = downloaded<float>(row_energy), sums.row_along = downloaded<float>(row_along);
    sums.column_energy = downloaded<double>(column_energy);
    sums.column_along = downloaded<double>(column_along);
    sums.tile_energy = downloaded<double>(tile_energy);
    sums.largest = downloaded<kda::LargestElement>(largest);
    sums.direction_squares = downloaded<float>(squares), sums.direction_truth = downloaded<float>(truth);
    sums.is_finite = downloaded<int>(is_finite), sums.along_directions = downloaded<float>(along);
    for (const DeviceMemory* const memory :
         {&row_truth, &column_truth, &row_energy, &row_along, &of_tiles, &largest, &pieces_energy,
          &pieces_along, &column_energy, &column_along, &tile_energy, &squares, &truth, &is_finite, &along})
      memory->check_canaries();
    return sums;
  }

 private:
  static std::size_t count_of(int rows, int at_once) {
    return static_cast<std::size_t>((rows + at_once - 1) / at_once);
  }

  static PlacedTensor placed(const RowTensor& tensor) {
    PlacedTensor placed{};
    placed.places = tensor.places;
    placed.tensor = {static_cast<const DeviceMemory*>(tensor.tensor.memory.get())->data(),
                     tensor.tensor.dtype};
    if (tensor.stored_as != placed.tensor.dtype && tensor.stored_as == numeric::DType::bf16)
      placed.rounding = kda::Rounding::bf16;
    if (tensor.stored_as != placed.tensor.dtype && tensor.stored_as == numeric::DType::fp16)
      placed.rounding = kda::Rounding::fp16;
    return placed;
  }
  template <class Element>
  const Element* uploaded(const char* name, const std::vector<Element>& values) {
    memory_.emplace_back(name, values.size() * sizeof(Element));
    memory_.back().upload(values.data());
    return memory_.back().as<const Element>();
  }

  /// A row for sixteen threads.
  template <class Kernel, class... Outputs>
  void launch_rows(const char* name, Kernel kernel, int depth, Outputs... outputs) {
    check(cudaStreamSynchronize(nullptr), "uploading");  // which this stream would not wait for
    launch_on(stream_.get(), name, kernel,
              dim3(static_cast<unsigned>(count_of(p_.rows, row_lanes)), static_cast<unsigned>(p_.heads),
                   static_cast<unsigned>(depth)),
              row_threads, 0, p_, outputs...);
  }
  /// A thread for each of `count`.
  template <class Kernel, class... Outputs>
  void launch_each(const char* name, Kernel kernel, std::size_t count, Outputs... outputs) {
    launch_on(stream_.get(), name, kernel,
              dim3(static_cast<unsigned>((count + column_threads - 1) / column_threads)), column_threads, 0,
              p_, outputs...);
  }
  /// When all that was launched is.
  template <class Number>
  Numbers<Number> done(const DeviceMemory& memory) {
    check(cudaStreamSynchronize(stream_.get()), "waiting for the GPU");
    memory.check_canaries();
    return downloaded<Number>(memory);
  }

  const kda::RowErrorRequest r_;
  RowErrorProblem p_{};
  std::vector<PlacedTensor> fields_, directions_;
  std::list<DeviceMemory> memory_;
  DeviceMemory units_;
  Stream stream_;  // the last: it is done before anything above goes away
};

}  // namespace

kda::TensorOnGpu uploaded(numeric::DType dtype, const void* data, std::size_t elements) {
  const auto memory =
      std::make_shared<const DeviceMemory>("a tensor", numeric::format_of(dtype).bytes * elements);
  memory->upload(data);
  return {memory, dtype, elements};
}

kda::TensorOnGpu room_for_doubles(std::size_t elements) {
  return {std::make_shared<const DeviceMemory>("the truth", elements * sizeof(double)), numeric::DType::fp64,
          elements};
}

void upload_part(const kda::TensorOnGpu& to, std::size_t begin, std::size_t count, const double* values) {
  // At the end of the process the runtime may be gone.
  static const Stream& stream = *new Stream;
  check(cudaMemcpyAsync(static_cast<const DeviceMemory*>(to.memory.get())->as<double>() + begin, values,
                        count * sizeof(double), cudaMemcpyHostToDevice, stream.get()),
        "uploading a part of a tensor");
  check(cudaStreamSynchronize(stream.get()), "uploading a part of a tensor");
}

std::unique_ptr<kda::RowErrorSums> row_errors(kda::RowErrorRequest request) {
  return std::make_unique<RowErrors>(std::move(request));
}

}  // namespace kda_check::cuda
