@tvm_hybrid_amx_granted = linkonce_odr hidden global i32 0
@tvm_hybrid_amx_emulator = linkonce_odr hidden constant
  [20 x i8] c"amx_emulator_active\00"
declare ptr @dlsym(ptr, ptr)

define linkonce_odr hidden i32 @tvm_hybrid_amx_permission() #0 {
  %known = load atomic i32, ptr @tvm_hybrid_amx_granted monotonic, align 4
  %granted = icmp ne i32 %known, 0
  br i1 %granted, label %yes, label %ask, !prof !0
ask:
  %emulator = call ptr @dlsym(ptr null, ptr @tvm_hybrid_amx_emulator)
  %none = icmp eq ptr %emulator, null
  br i1 %none, label %linux, label %emulated
emulated:
  %active = call i32 %emulator()
  %idle = icmp eq i32 %active, 0
  br i1 %idle, label %linux, label %yes
linux:
  %result = call i64 asm sideeffect "syscall",
    "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
    (i64 158, i64 4131, i64 18)
  %denied = icmp ne i64 %result, 0
  br i1 %denied, label %no, label %remember
remember:
  store atomic i32 1, ptr @tvm_hybrid_amx_granted monotonic, align 4
  br label %yes
yes:
  ret i32 0
no:
  %negative = trunc i64 %result to i32
  %errno = sub i32 0, %negative
  ret i32 %errno
}
attributes #0 = { alwaysinline nounwind }
!0 = !{!"branch_weights", i32 1000, i32 1}
