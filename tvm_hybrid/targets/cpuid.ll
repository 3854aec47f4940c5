@tvm_hybrid_cpu_checked = internal global i32 0

define i32 @tvm_hybrid_cpu_known() {
  %known = load atomic i32, ptr @tvm_hybrid_cpu_checked monotonic, align 4
  ret i32 %known
}

define i32 @tvm_hybrid_cpu_remember() {
  store atomic i32 1, ptr @tvm_hybrid_cpu_checked monotonic, align 4
  ret i32 0
}

define i32 @tvm_hybrid_cpuid(i32 %leaf, i32 %subleaf, i32 %word) {
  %all = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %subleaf)
  %a = extractvalue { i32, i32, i32, i32 } %all, 0
  %b = extractvalue { i32, i32, i32, i32 } %all, 1
  %c = extractvalue { i32, i32, i32, i32 } %all, 2
  %d = extractvalue { i32, i32, i32, i32 } %all, 3
  %is_a = icmp eq i32 %word, 0
  %is_b = icmp eq i32 %word, 1
  %is_c = icmp eq i32 %word, 2
  %c_or_d = select i1 %is_c, i32 %c, i32 %d
  %b_or = select i1 %is_b, i32 %b, i32 %c_or_d
  %one = select i1 %is_a, i32 %a, i32 %b_or
  ret i32 %one
}

define i32 @tvm_hybrid_cpu_state() {
  %all = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 1, i32 0)
  %c = extractvalue { i32, i32, i32, i32 } %all, 2
  %bit = and i32 %c, 134217728  ; OSXSAVE
  %told = icmp ne i32 %bit, 0
  br i1 %told, label %ask, label %none
ask:
  %both = call { i32, i32 } asm sideeffect ".byte 0x0f, 0x01, 0xd0",
    "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %low = extractvalue { i32, i32 } %both, 0
  ret i32 %low
none:
  ret i32 0
}
