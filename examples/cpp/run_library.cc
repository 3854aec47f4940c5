// Loads a compiled model and runs it, with TVM's runtime alone.
//
//   run_library MODEL.so OUTPUT INPUT:TYPE:SHAPE...
//   run_library model.so y x.bin:float32:1x128
//
// MODEL.so is what `Executable.export` of tvm_hybrid wrote, or `export_library` of TVM's own
// executable: both hold a program of TVM's Relax virtual machine. Inputs are files of bare numbers,
// in the order of the model; its results go to the files OUTPUT.0, OUTPUT.1 and so on.
//
// docs/deploy.md says how to build it, and what to ship.

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr DLDevice kCPU{kDLCPU, 0};

// TVM's kernels may expect 64-byte alignment of their arguments; memory of TVM's own has it.
struct AlignedMemory {
  static constexpr size_t kAlignment = 64;

  void AllocData(DLTensor* tensor) {
    const size_t bytes = ffi::GetDataSize(*tensor);
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, whole ? whole : kAlignment);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// A model that was loaded, ready to run.
class Model {
 public:
  // Throws ffi::Error if there is no such file, or this CPU lacks instructions that it needs. The
  // path is made absolute, because dlopen looks for a name without a slash in system folders only.
  explicit Model(const std::string& path)
      : library_(ffi::Module::LoadFromFile(std::filesystem::absolute(path).string())),
        machine_(Get(library_, "vm_load_executable")().cast<ffi::Module>()),
        main_(Get(machine_, "main")) {
    constexpr int kPooled = 2;  // memory of values between kernels is kept from run to run
    Get(machine_, "vm_initialization")(static_cast<int>(kCPU.device_type), kCPU.device_id, kPooled);
  }

  // Throws ffi::Error if number, shape or type of the inputs is not the model's.
  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) const {
    const std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    main_.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    if (auto one = result.as<ffi::Tensor>()) return {*one};
    std::vector<ffi::Tensor> several;
    for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>())
      several.push_back(each.cast<ffi::Tensor>());
    return several;
  }

 private:
  static ffi::Function Get(const ffi::Module& module, const std::string& name) {
    ffi::Optional<ffi::Function> found = module->GetFunction(name, /*query_imports=*/true);
    if (!found) throw std::runtime_error("no model: the library has no function " + name);
    return *found;
  }

  ffi::Module library_;
  ffi::Module machine_;
  ffi::Function main_;
};

// "x.bin:float32:1x128" as a tensor with the contents of the file.
ffi::Tensor Read(const std::string& argument) {
  const size_t second = argument.rfind(':');
  const size_t first = second == std::string::npos ? second : argument.rfind(':', second - 1);
  if (first == std::string::npos)
    throw std::invalid_argument("an input is FILE:TYPE:SHAPE, not " + argument);
  std::vector<int64_t> extents;
  std::istringstream sizes(argument.substr(second + 1));
  for (std::string size; std::getline(sizes, size, 'x');) extents.push_back(std::stoll(size));
  const ffi::Shape shape(extents);
  const DLDataType type = ffi::StringToDLDataType(argument.substr(first + 1, second - first - 1));
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), shape, type, kCPU);

  const std::string path = argument.substr(0, first);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(ffi::GetDataSize(*tensor.GetDLTensorPtr()));
  if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes) || file.peek() != EOF)
    throw std::runtime_error(path + " is missing, or has not " + std::to_string(bytes) + " bytes");
  return tensor;
}

void Write(const std::string& path, const ffi::Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.data_ptr()),
             static_cast<std::streamsize>(ffi::GetDataSize(*tensor.GetDLTensorPtr())));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
  std::cout << path << ": " << ffi::DLDataTypeToString(tensor.dtype());
  for (int64_t size : tensor.shape()) std::cout << " " << size;
  std::cout << "\n";
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::cerr << "usage: run_library MODEL.so OUTPUT INPUT:TYPE:SHAPE...\n";
    return 2;
  }
  try {
    const Model model(arguments[1]);
    std::vector<ffi::Tensor> inputs;
    for (int i = 3; i < count; ++i) inputs.push_back(Read(arguments[i]));
    const std::vector<ffi::Tensor> outputs = model.Run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      Write(arguments[2] + ("." + std::to_string(i)), outputs[i]);
    return 0;
  } catch (const ffi::Error& error) {  // TVM's, and those of the library: kind and text
    std::cerr << error.kind() << ": " << error.message() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
  }
  return 1;
}
