@tvm_hybrid_amx_emulator_name = linkonce_odr hidden constant
  [20 x i8] c"amx_emulator_active\00"
declare ptr @dlsym(ptr, ptr)

define linkonce_odr hidden i32 @tvm_hybrid_amx_emulated() {
  %emulator = call ptr @dlsym(ptr null, ptr @tvm_hybrid_amx_emulator_name)
  %none = icmp eq ptr %emulator, null
  br i1 %none, label %no, label %ask
ask:
  %active = call i32 %emulator()
  ret i32 %active
no:
  ret i32 0
}
