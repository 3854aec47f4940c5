; ModuleID = 'pool.c'
source_filename = "pool.c"
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

%struct.Tvm = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr }
%union.pthread_mutex_t = type { %struct.__pthread_mutex_s }
%struct.__pthread_mutex_s = type { i32, i32, i32, i32, i32, i16, i16, %struct.__pthread_internal_list }
%struct.__pthread_internal_list = type { ptr, ptr }
%struct.timespec = type { i64, i64 }
%struct.Region = type { %struct.Group, ptr, ptr, i32, i32, ptr, ptr, i8, i32, ptr, i32, i32, i32, [2 x i64] }
%struct.Group = type { ptr, i32 }
%struct.cpu_set_t = type { [16 x i64] }
%struct.__sigset_t = type { [16 x i64] }
%union.pthread_attr_t = type { i64, [48 x i8] }

@__const.__tvm_ffi_addresses.all = private unnamed_addr constant [6 x ptr] [ptr @start, ptr @use, ptr @add_always, ptr @launch, ptr @barrier, ptr @number], align 16
@tvm = internal unnamed_addr global %struct.Tvm zeroinitializer, align 8
@state_key = internal global i32 0, align 4
@pools_lock = internal global %union.pthread_mutex_t zeroinitializer, align 8
@pools = internal unnamed_addr global ptr null, align 8
@always_users = internal global i32 0, align 4
@.str = private unnamed_addr constant [11 x i8] c"tvm_hybrid\00", align 1
@spin_ns = internal unnamed_addr constant [3 x i64] [i64 50000, i64 9223372036854775807, i64 0], align 16
@.str.1 = private unnamed_addr constant [16 x i8] c"tvm_hybrid_more\00", align 1

; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: readwrite)
define range(i32 -1, 1) i32 @__tvm_ffi_addresses(ptr nocapture noundef readnone %0, ptr nocapture noundef readonly %1, i32 noundef %2, ptr nocapture noundef writeonly %3) local_unnamed_addr #0 {
  %5 = icmp eq i32 %2, 1
  br i1 %5, label %6, label %16

6:                                                ; preds = %4
  %7 = getelementptr inbounds i8, ptr %1, i64 8
  %8 = load i64, ptr %7, align 8, !tbaa !2
  %9 = icmp ugt i64 %8, 5
  br i1 %9, label %16, label %10

10:                                               ; preds = %6
  store i32 1, ptr %3, align 8, !tbaa !8
  %11 = getelementptr inbounds i8, ptr %3, i64 4
  store i32 0, ptr %11, align 4, !tbaa !9
  %12 = getelementptr inbounds [6 x ptr], ptr @__const.__tvm_ffi_addresses.all, i64 0, i64 %8
  %13 = load ptr, ptr %12, align 8, !tbaa !10
  %14 = ptrtoint ptr %13 to i64
  %15 = getelementptr inbounds i8, ptr %3, i64 8
  store i64 %14, ptr %15, align 8, !tbaa !2
  br label %16

16:                                               ; preds = %4, %6, %10
  %17 = phi i32 [ 0, %10 ], [ -1, %6 ], [ -1, %4 ]
  ret i32 %17
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: nounwind
define internal i32 @start(ptr nocapture noundef readonly %0) #2 {
  tail call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) @tvm, ptr noundef nonnull align 8 dereferenceable(56) %0, i64 56, i1 false), !tbaa.struct !12
  %2 = tail call i32 @pthread_key_create(ptr noundef nonnull @state_key, ptr noundef nonnull @free) #14
  %3 = icmp eq i32 %2, 0
  br i1 %3, label %4, label %6

4:                                                ; preds = %1
  %5 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_threads, ptr noundef null) #14
  br label %6

6:                                                ; preds = %1, %4
  %7 = phi i32 [ %5, %4 ], [ %2, %1 ]
  ret i32 %7
}

; Function Attrs: nounwind
define internal range(i32 0, 13) i32 @use(i32 noundef %0, i32 noundef %1, i32 noundef %2, ptr nocapture noundef readonly %3, i32 noundef %4) #2 {
  %6 = load i32, ptr @state_key, align 4, !tbaa !13
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #14
  %8 = icmp eq i32 %0, 0
  br i1 %8, label %9, label %12

9:                                                ; preds = %5
  %10 = load i32, ptr @state_key, align 4, !tbaa !13
  %11 = tail call i32 @pthread_setspecific(i32 noundef %10, ptr noundef null) #14
  tail call void @free(ptr noundef %7) #14
  br label %91

12:                                               ; preds = %5
  %13 = icmp ne i32 %2, 0
  %14 = zext i1 %13 to i8
  %15 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @pools_lock) #14
  %16 = load ptr, ptr @pools, align 8, !tbaa !10
  %17 = icmp eq ptr %16, null
  br i1 %17, label %40, label %18

18:                                               ; preds = %12
  %19 = sext i32 %4 to i64
  %20 = shl nsw i64 %19, 2
  br label %21

21:                                               ; preds = %37, %18
  %22 = phi ptr [ %16, %18 ], [ %38, %37 ]
  %23 = getelementptr inbounds i8, ptr %22, i64 56
  %24 = load i8, ptr %23, align 8, !tbaa !14, !range !17, !noundef !18
  %25 = icmp eq i8 %24, %14
  %26 = and i1 %13, %25
  br i1 %26, label %27, label %36

27:                                               ; preds = %21
  %28 = getelementptr inbounds i8, ptr %22, i64 60
  %29 = load i32, ptr %28, align 4, !tbaa !19
  %30 = icmp eq i32 %29, %4
  br i1 %30, label %31, label %37

31:                                               ; preds = %27
  %32 = getelementptr inbounds i8, ptr %22, i64 64
  %33 = load ptr, ptr %32, align 8, !tbaa !20
  %34 = tail call i32 @bcmp(ptr %33, ptr readonly %3, i64 %20)
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %60, label %37

36:                                               ; preds = %21
  br i1 %25, label %60, label %37

37:                                               ; preds = %36, %31, %27
  %38 = load ptr, ptr %22, align 8, !tbaa !10
  %39 = icmp eq ptr %38, null
  br i1 %39, label %40, label %21, !llvm.loop !21

40:                                               ; preds = %37, %12
  %41 = tail call noalias dereferenceable_or_null(65616) ptr @calloc(i64 noundef 1, i64 noundef 65616) #18
  %42 = icmp eq ptr %41, null
  br i1 %42, label %60, label %43

43:                                               ; preds = %40
  %44 = add nsw i32 %4, 1
  %45 = sext i32 %44 to i64
  %46 = shl nsw i64 %45, 2
  %47 = tail call noalias ptr @malloc(i64 noundef %46) #19
  %48 = getelementptr inbounds i8, ptr %41, i64 64
  store ptr %47, ptr %48, align 8, !tbaa !20
  %49 = getelementptr inbounds i8, ptr %41, i64 8
  %50 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %49, ptr noundef null) #14
  %51 = getelementptr inbounds i8, ptr %41, i64 56
  store i8 %14, ptr %51, align 8, !tbaa !14
  %52 = load ptr, ptr %48, align 8, !tbaa !20
  %53 = icmp eq ptr %52, null
  br i1 %53, label %58, label %54

54:                                               ; preds = %43
  %55 = sext i32 %4 to i64
  %56 = shl nsw i64 %55, 2
  tail call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 4 %52, ptr readonly align 4 %3, i64 %56, i1 false)
  %57 = getelementptr inbounds i8, ptr %41, i64 60
  store i32 %4, ptr %57, align 4, !tbaa !19
  br label %58

58:                                               ; preds = %54, %43
  %59 = load ptr, ptr @pools, align 8, !tbaa !10
  store ptr %59, ptr %41, align 8, !tbaa !23
  store ptr %41, ptr @pools, align 8, !tbaa !10
  br label %60

60:                                               ; preds = %31, %36, %40, %58
  %61 = phi ptr [ %41, %58 ], [ null, %40 ], [ %22, %36 ], [ %22, %31 ]
  %62 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @pools_lock) #14
  %63 = icmp eq ptr %7, null
  %64 = icmp ne ptr %61, null
  %65 = and i1 %63, %64
  br i1 %65, label %66, label %72

66:                                               ; preds = %60
  %67 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #18
  %68 = icmp eq ptr %67, null
  br i1 %68, label %91, label %69

69:                                               ; preds = %66
  %70 = load i32, ptr @state_key, align 4, !tbaa !13
  %71 = tail call i32 @pthread_setspecific(i32 noundef %70, ptr noundef nonnull %67) #14
  br label %72

72:                                               ; preds = %69, %60
  %73 = phi ptr [ %67, %69 ], [ %7, %60 ]
  %74 = icmp ne ptr %73, null
  %75 = and i1 %64, %74
  br i1 %75, label %76, label %91

76:                                               ; preds = %72
  %77 = tail call i32 @llvm.smin.i32(i32 %0, i32 8193)
  %78 = add nsw i32 %77, -1
  %79 = getelementptr inbounds i8, ptr %61, i64 52
  %80 = load atomic i32, ptr %79 seq_cst, align 4
  br label %81

81:                                               ; preds = %84, %76
  %82 = phi i32 [ %80, %76 ], [ %87, %84 ]
  %83 = icmp slt i32 %82, %78
  br i1 %83, label %84, label %88

84:                                               ; preds = %81
  %85 = cmpxchg weak ptr %79, i32 %82, i32 %78 seq_cst seq_cst, align 4
  %86 = extractvalue { i32, i1 } %85, 1
  %87 = extractvalue { i32, i1 } %85, 0
  br i1 %86, label %88, label %81, !llvm.loop !24

88:                                               ; preds = %81, %84
  store ptr %61, ptr %73, align 8, !tbaa !25
  %89 = getelementptr inbounds i8, ptr %73, i64 8
  store i32 %0, ptr %89, align 8, !tbaa !27
  %90 = getelementptr inbounds i8, ptr %73, i64 12
  store i32 %1, ptr %90, align 4, !tbaa !28
  br label %91

91:                                               ; preds = %66, %88, %72, %9
  %92 = phi i32 [ 0, %9 ], [ 0, %88 ], [ 12, %72 ], [ 12, %66 ]
  ret i32 %92
}

; Function Attrs: mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none)
define internal void @add_always(i32 noundef %0) #3 {
  %2 = atomicrmw add ptr @always_users, i32 %0 seq_cst, align 4
  ret void
}

; Function Attrs: nounwind
define internal i32 @launch(ptr noundef %0, ptr noundef %1, i32 noundef %2) #2 {
  %4 = alloca %struct.timespec, align 8
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = alloca ptr, align 8
  %8 = alloca %struct.Region, align 64
  %9 = load i32, ptr @state_key, align 4, !tbaa !13
  %10 = tail call ptr @pthread_getspecific(i32 noundef %9) #14
  %11 = icmp eq ptr %10, null
  br i1 %11, label %12, label %15

12:                                               ; preds = %3
  %13 = load ptr, ptr @tvm, align 8, !tbaa !29
  %14 = tail call i32 %13(ptr noundef %0, ptr noundef %1, i32 noundef %2) #14
  br label %501

15:                                               ; preds = %3
  %16 = icmp sgt i32 %2, 0
  br i1 %16, label %20, label %17

17:                                               ; preds = %15
  %18 = getelementptr inbounds i8, ptr %10, i64 8
  %19 = load i32, ptr %18, align 8, !tbaa !27
  br label %20

20:                                               ; preds = %15, %17
  %21 = phi i32 [ %19, %17 ], [ %2, %15 ]
  call void @llvm.lifetime.start.p0(i64 104, ptr nonnull %8) #14
  store ptr %8, ptr %8, align 64, !tbaa !31
  %22 = getelementptr inbounds i8, ptr %8, i64 8
  store i32 %21, ptr %22, align 8, !tbaa !33
  %23 = getelementptr inbounds i8, ptr %8, i64 16
  store ptr %0, ptr %23, align 16, !tbaa !34
  %24 = getelementptr inbounds i8, ptr %8, i64 24
  store ptr %1, ptr %24, align 8, !tbaa !36
  %25 = getelementptr inbounds i8, ptr %8, i64 32
  %26 = getelementptr inbounds i8, ptr %8, i64 36
  %27 = getelementptr inbounds i8, ptr %8, i64 40
  %28 = getelementptr inbounds i8, ptr %8, i64 48
  %29 = getelementptr inbounds i8, ptr %8, i64 56
  %30 = getelementptr inbounds i8, ptr %8, i64 60
  %31 = getelementptr inbounds i8, ptr %8, i64 64
  %32 = getelementptr inbounds i8, ptr %8, i64 88
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %32, i8 0, i64 16, i1 false)
  %33 = getelementptr inbounds i8, ptr %10, i64 12
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 32 dereferenceable(25) %25, i8 0, i64 25, i1 false)
  %34 = getelementptr inbounds i8, ptr %8, i64 72
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(12) %34, i8 0, i64 12, i1 false)
  %35 = load i32, ptr %33, align 4, !tbaa !28
  store i32 %35, ptr %26, align 4, !tbaa !37
  %36 = load ptr, ptr %10, align 8, !tbaa !25
  store ptr %36, ptr %27, align 8, !tbaa !38
  %37 = icmp sgt i32 %21, 1
  %38 = add nuw nsw i32 %21, 63
  %39 = lshr i32 %38, 6
  %40 = select i1 %37, i32 %39, i32 0
  store i32 %40, ptr %30, align 4, !tbaa !39
  store ptr %32, ptr %31, align 64, !tbaa !40
  %41 = icmp ugt i32 %40, 2
  br i1 %41, label %42, label %49

42:                                               ; preds = %20
  %43 = zext nneg i32 %40 to i64
  %44 = call noalias ptr @calloc(i64 noundef %43, i64 noundef 8) #18
  store ptr %44, ptr %31, align 64, !tbaa !40
  %45 = icmp eq ptr %44, null
  br i1 %45, label %46, label %49

46:                                               ; preds = %42
  %47 = load ptr, ptr @tvm, align 8, !tbaa !29
  %48 = call i32 %47(ptr noundef %0, ptr noundef %1, i32 noundef %21) #14
  br label %499

49:                                               ; preds = %42, %20
  br i1 %37, label %50, label %68

50:                                               ; preds = %49
  %51 = getelementptr inbounds i8, ptr %10, i64 8
  %52 = load i32, ptr %51, align 8, !tbaa !27
  %53 = icmp sgt i32 %52, 1
  %54 = getelementptr inbounds i8, ptr %10, i64 16
  %55 = load i32, ptr %54, align 8, !tbaa !41
  br i1 %53, label %65, label %56

56:                                               ; preds = %50
  %57 = add nsw i32 %55, 1
  store i32 %57, ptr %54, align 8, !tbaa !41
  br label %58

58:                                               ; preds = %65, %56
  %59 = add nsw i32 %21, -1
  %60 = add nsw i32 %21, -2
  %61 = and i32 %59, 3
  %62 = icmp ult i32 %60, 3
  br i1 %62, label %235, label %63

63:                                               ; preds = %58
  %64 = and i32 %59, -4
  br label %194

65:                                               ; preds = %50
  %66 = icmp eq i32 %55, 0
  %67 = add nsw i32 %55, 1
  store i32 %67, ptr %54, align 8, !tbaa !41
  br i1 %66, label %72, label %58

68:                                               ; preds = %49
  %69 = getelementptr inbounds i8, ptr %10, i64 16
  %70 = load i32, ptr %69, align 8, !tbaa !41
  %71 = add nsw i32 %70, 1
  store i32 %71, ptr %69, align 8, !tbaa !41
  br label %252

72:                                               ; preds = %65
  %73 = add nsw i32 %21, -1
  store i32 %73, ptr %25, align 32, !tbaa !42
  %74 = getelementptr inbounds i8, ptr %36, i64 52
  %75 = load atomic i32, ptr %74 monotonic, align 4
  %76 = getelementptr inbounds i8, ptr %36, i64 48
  %77 = load atomic i32, ptr %76 acquire, align 8
  %78 = icmp slt i32 %77, %73
  %79 = icmp slt i32 %77, %75
  %80 = select i1 %78, i1 %79, i1 false
  br i1 %80, label %81, label %116

81:                                               ; preds = %72
  %82 = call i32 @llvm.smin.i32(i32 %73, i32 %75)
  %83 = getelementptr inbounds i8, ptr %36, i64 8
  %84 = call i32 @pthread_mutex_lock(ptr noundef nonnull %83) #14
  %85 = load atomic i32, ptr %76 seq_cst, align 8
  %86 = icmp slt i32 %85, %82
  br i1 %86, label %87, label %113

87:                                               ; preds = %81
  %88 = getelementptr inbounds i8, ptr %36, i64 80
  %89 = sext i32 %85 to i64
  br label %90

90:                                               ; preds = %109, %87
  %91 = phi i64 [ %89, %87 ], [ %110, %109 ]
  %92 = getelementptr inbounds [8192 x ptr], ptr %88, i64 0, i64 %91
  %93 = load ptr, ptr %92, align 8, !tbaa !10
  %94 = icmp eq ptr %93, null
  br i1 %94, label %97, label %95

95:                                               ; preds = %90
  %96 = trunc nsw i64 %91 to i32
  br label %104

97:                                               ; preds = %90
  %98 = call noalias align 128 dereferenceable_or_null(128) ptr @aligned_alloc(i64 noundef 128, i64 noundef 128) #20
  %99 = icmp eq ptr %98, null
  br i1 %99, label %113, label %100

100:                                              ; preds = %97
  %101 = getelementptr inbounds i8, ptr %98, i64 8
  store ptr %36, ptr %101, align 8, !tbaa !43
  %102 = getelementptr inbounds i8, ptr %98, i64 16
  %103 = trunc nsw i64 %91 to i32
  store i32 %103, ptr %102, align 16, !tbaa !45
  store ptr %98, ptr %92, align 8, !tbaa !10
  br label %104

104:                                              ; preds = %100, %95
  %105 = phi i32 [ %96, %95 ], [ %103, %100 ]
  %106 = phi ptr [ %93, %95 ], [ %98, %100 ]
  store i64 0, ptr %106, align 8, !tbaa !42
  %107 = load ptr, ptr %92, align 8, !tbaa !10
  %108 = call fastcc zeroext i1 @start_thread(ptr noundef nonnull %36, i32 noundef %105, ptr noundef nonnull @run_worker, ptr noundef %107)
  br i1 %108, label %109, label %113

109:                                              ; preds = %104
  %110 = add nsw i64 %91, 1
  %111 = trunc i64 %110 to i32
  store atomic i32 %111, ptr %76 seq_cst, align 8
  %112 = icmp eq i32 %82, %111
  br i1 %112, label %113, label %90, !llvm.loop !46

113:                                              ; preds = %109, %104, %97, %81
  %114 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %83) #14
  %115 = load atomic i32, ptr %76 seq_cst, align 8
  br label %116

116:                                              ; preds = %113, %72
  %117 = phi i32 [ %77, %72 ], [ %115, %113 ]
  %118 = getelementptr inbounds i8, ptr %36, i64 80
  %119 = ptrtoint ptr %8 to i64
  %120 = sext i32 %117 to i64
  %121 = zext nneg i32 %21 to i64
  br label %122

122:                                              ; preds = %184, %116
  %123 = phi i64 [ 1, %116 ], [ %187, %184 ]
  %124 = phi i32 [ %73, %116 ], [ %185, %184 ]
  %125 = phi i32 [ 0, %116 ], [ %186, %184 ]
  %126 = icmp sgt i64 %123, %120
  br i1 %126, label %145, label %127

127:                                              ; preds = %122
  %128 = add nsw i64 %123, -1
  %129 = getelementptr inbounds [8192 x ptr], ptr %118, i64 0, i64 %128
  %130 = load ptr, ptr %129, align 8, !tbaa !10
  %131 = load atomic i64, ptr %130 monotonic, align 128
  %132 = shl i64 %123, 48
  %133 = or i64 %132, %119
  br label %134

134:                                              ; preds = %137, %127
  %135 = phi i64 [ %131, %127 ], [ %140, %137 ]
  %136 = icmp ult i64 %135, 2
  br i1 %136, label %137, label %145

137:                                              ; preds = %134
  %138 = cmpxchg weak ptr %130, i64 %135, i64 %133 seq_cst seq_cst, align 128
  %139 = extractvalue { i64, i1 } %138, 1
  %140 = extractvalue { i64, i1 } %138, 0
  br i1 %139, label %141, label %134, !llvm.loop !47

141:                                              ; preds = %137
  %142 = icmp eq i64 %135, 1
  br i1 %142, label %143, label %172

143:                                              ; preds = %141
  %144 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %130, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %172

145:                                              ; preds = %134, %122
  %146 = icmp slt i32 %124, %117
  br i1 %146, label %147, label %175

147:                                              ; preds = %145
  %148 = shl i64 %123, 48
  %149 = or i64 %148, %119
  %150 = sext i32 %124 to i64
  br label %151

151:                                              ; preds = %170, %147
  %152 = phi i64 [ %150, %147 ], [ %153, %170 ]
  %153 = add nsw i64 %152, 1
  %154 = getelementptr inbounds [8192 x ptr], ptr %118, i64 0, i64 %152
  %155 = load ptr, ptr %154, align 8, !tbaa !10
  %156 = load atomic i64, ptr %155 monotonic, align 128
  br label %157

157:                                              ; preds = %160, %151
  %158 = phi i64 [ %156, %151 ], [ %163, %160 ]
  %159 = icmp ult i64 %158, 2
  br i1 %159, label %160, label %170

160:                                              ; preds = %157
  %161 = cmpxchg weak ptr %155, i64 %158, i64 %149 seq_cst seq_cst, align 128
  %162 = extractvalue { i64, i1 } %161, 1
  %163 = extractvalue { i64, i1 } %161, 0
  br i1 %162, label %164, label %157, !llvm.loop !47

164:                                              ; preds = %160
  %165 = icmp eq i64 %158, 1
  br i1 %165, label %166, label %168

166:                                              ; preds = %164
  %167 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %155, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %168

168:                                              ; preds = %166, %164
  %169 = trunc nsw i64 %153 to i32
  br label %172

170:                                              ; preds = %157
  %171 = icmp eq i64 %153, %120
  br i1 %171, label %175, label %151, !llvm.loop !48

172:                                              ; preds = %168, %143, %141
  %173 = phi i32 [ %169, %168 ], [ %124, %143 ], [ %124, %141 ]
  %174 = add nsw i32 %125, 1
  br label %184

175:                                              ; preds = %170, %145
  %176 = phi i32 [ %124, %145 ], [ %117, %170 ]
  %177 = load ptr, ptr %31, align 64, !tbaa !40
  %178 = lshr i64 %123, 6
  %179 = and i64 %178, 67108863
  %180 = getelementptr inbounds i64, ptr %177, i64 %179
  %181 = and i64 %123, 63
  %182 = shl nuw i64 1, %181
  %183 = atomicrmw or ptr %180, i64 %182 seq_cst, align 8
  br label %184

184:                                              ; preds = %175, %172
  %185 = phi i32 [ %173, %172 ], [ %176, %175 ]
  %186 = phi i32 [ %174, %172 ], [ %125, %175 ]
  %187 = add nuw nsw i64 %123, 1
  %188 = icmp eq i64 %187, %121
  br i1 %188, label %189, label %122, !llvm.loop !49

189:                                              ; preds = %184
  %190 = icmp eq i32 %73, %186
  br i1 %190, label %252, label %191

191:                                              ; preds = %189
  %192 = sub nsw i32 %73, %186
  %193 = atomicrmw sub ptr %25, i32 %192 seq_cst, align 32
  br label %252

194:                                              ; preds = %194, %63
  %195 = phi i32 [ 1, %63 ], [ %232, %194 ]
  %196 = phi i32 [ 0, %63 ], [ %233, %194 ]
  %197 = load ptr, ptr %31, align 64, !tbaa !40
  %198 = lshr i32 %195, 6
  %199 = zext nneg i32 %198 to i64
  %200 = getelementptr inbounds i64, ptr %197, i64 %199
  %201 = and i32 %195, 63
  %202 = zext nneg i32 %201 to i64
  %203 = shl nuw i64 1, %202
  %204 = atomicrmw or ptr %200, i64 %203 seq_cst, align 8
  %205 = add nuw nsw i32 %195, 1
  %206 = load ptr, ptr %31, align 64, !tbaa !40
  %207 = lshr i32 %205, 6
  %208 = zext nneg i32 %207 to i64
  %209 = getelementptr inbounds i64, ptr %206, i64 %208
  %210 = and i32 %205, 63
  %211 = zext nneg i32 %210 to i64
  %212 = shl nuw i64 1, %211
  %213 = atomicrmw or ptr %209, i64 %212 seq_cst, align 8
  %214 = add nuw nsw i32 %195, 2
  %215 = load ptr, ptr %31, align 64, !tbaa !40
  %216 = lshr i32 %214, 6
  %217 = zext nneg i32 %216 to i64
  %218 = getelementptr inbounds i64, ptr %215, i64 %217
  %219 = and i32 %214, 63
  %220 = zext nneg i32 %219 to i64
  %221 = shl nuw i64 1, %220
  %222 = atomicrmw or ptr %218, i64 %221 seq_cst, align 8
  %223 = add nuw nsw i32 %195, 3
  %224 = load ptr, ptr %31, align 64, !tbaa !40
  %225 = lshr i32 %223, 6
  %226 = zext nneg i32 %225 to i64
  %227 = getelementptr inbounds i64, ptr %224, i64 %226
  %228 = and i32 %223, 63
  %229 = zext nneg i32 %228 to i64
  %230 = shl nuw i64 1, %229
  %231 = atomicrmw or ptr %227, i64 %230 seq_cst, align 8
  %232 = add nuw nsw i32 %195, 4
  %233 = add i32 %196, 4
  %234 = icmp eq i32 %233, %64
  br i1 %234, label %235, label %194, !llvm.loop !50

235:                                              ; preds = %194, %58
  %236 = phi i32 [ 1, %58 ], [ %232, %194 ]
  %237 = icmp eq i32 %61, 0
  br i1 %237, label %252, label %238

238:                                              ; preds = %235, %238
  %239 = phi i32 [ %249, %238 ], [ %236, %235 ]
  %240 = phi i32 [ %250, %238 ], [ 0, %235 ]
  %241 = load ptr, ptr %31, align 64, !tbaa !40
  %242 = lshr i32 %239, 6
  %243 = zext nneg i32 %242 to i64
  %244 = getelementptr inbounds i64, ptr %241, i64 %243
  %245 = and i32 %239, 63
  %246 = zext nneg i32 %245 to i64
  %247 = shl nuw i64 1, %246
  %248 = atomicrmw or ptr %244, i64 %247 seq_cst, align 8
  %249 = add nuw nsw i32 %239, 1
  %250 = add i32 %240, 1
  %251 = icmp eq i32 %250, %61
  br i1 %251, label %252, label %238, !llvm.loop !51

252:                                              ; preds = %235, %238, %191, %189, %68
  %253 = phi ptr [ %54, %189 ], [ %54, %191 ], [ %69, %68 ], [ %54, %238 ], [ %54, %235 ]
  %254 = phi i1 [ true, %189 ], [ true, %191 ], [ false, %68 ], [ false, %238 ], [ false, %235 ]
  %255 = load ptr, ptr %23, align 16, !tbaa !34
  %256 = load ptr, ptr %24, align 8, !tbaa !36
  %257 = call i32 %255(i32 noundef 0, ptr noundef nonnull %8, ptr noundef %256) #14
  %258 = icmp eq i32 %257, 0
  br i1 %258, label %272, label %259

259:                                              ; preds = %252
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %7) #14
  store ptr null, ptr %7, align 8, !tbaa !10
  %260 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %260(ptr noundef nonnull %7) #14
  store atomic i8 1, ptr %29 seq_cst, align 8
  %261 = load ptr, ptr %7, align 8, !tbaa !10
  %262 = icmp eq ptr %261, null
  br i1 %262, label %271, label %263

263:                                              ; preds = %259
  %264 = ptrtoint ptr %261 to i64
  %265 = cmpxchg ptr %28, i64 0, i64 %264 seq_cst seq_cst, align 8
  %266 = extractvalue { i64, i1 } %265, 1
  br i1 %266, label %271, label %267

267:                                              ; preds = %263
  %268 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %269 = load ptr, ptr %7, align 8, !tbaa !10
  %270 = call i32 %268(ptr noundef %269) #14
  br label %271

271:                                              ; preds = %267, %263, %259
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #14
  br label %272

272:                                              ; preds = %271, %252
  %273 = load i32, ptr %30, align 4, !tbaa !39
  %274 = icmp sgt i32 %273, 0
  br i1 %274, label %275, label %308

275:                                              ; preds = %272
  %276 = ptrtoint ptr %8 to i64
  br label %277

277:                                              ; preds = %300, %275
  %278 = phi i64 [ 0, %275 ], [ %301, %300 ]
  %279 = load ptr, ptr %31, align 64, !tbaa !40
  %280 = getelementptr inbounds i64, ptr %279, i64 %278
  %281 = load atomic i64, ptr %280 monotonic, align 8
  br label %282

282:                                              ; preds = %285, %277
  %283 = phi i64 [ %281, %277 ], [ %294, %285 ]
  %284 = icmp eq i64 %283, 0
  br i1 %284, label %295, label %285

285:                                              ; preds = %282
  %286 = sub i64 0, %283
  %287 = and i64 %283, %286
  %288 = load ptr, ptr %31, align 64, !tbaa !40
  %289 = getelementptr inbounds i64, ptr %288, i64 %278
  %290 = xor i64 %287, -1
  %291 = atomicrmw and ptr %289, i64 %290 seq_cst, align 8
  %292 = and i64 %291, %287
  %293 = icmp eq i64 %292, 0
  %294 = and i64 %291, %290
  br i1 %293, label %282, label %302, !llvm.loop !55

295:                                              ; preds = %282
  %296 = add nuw nsw i64 %278, 1
  %297 = load i32, ptr %30, align 4, !tbaa !39
  %298 = sext i32 %297 to i64
  %299 = icmp slt i64 %296, %298
  br i1 %299, label %300, label %308

300:                                              ; preds = %295, %382
  %301 = phi i64 [ %296, %295 ], [ 0, %382 ]
  br label %277, !llvm.loop !56

302:                                              ; preds = %285
  %303 = trunc nuw nsw i64 %278 to i32
  %304 = shl nsw i32 %303, 6
  %305 = call range(i64 0, 65) i64 @llvm.cttz.i64(i64 %283, i1 true)
  %306 = trunc nuw nsw i64 %305 to i32
  %307 = or disjoint i32 %304, %306
  br i1 %254, label %309, label %364

308:                                              ; preds = %382, %295, %272
  br i1 %254, label %385, label %433

309:                                              ; preds = %302
  %310 = load i32, ptr %30, align 4, !tbaa !39
  %311 = icmp sgt i32 %310, 0
  br i1 %311, label %312, label %364

312:                                              ; preds = %309
  %313 = load ptr, ptr %31, align 64, !tbaa !40
  %314 = zext nneg i32 %310 to i64
  %315 = load atomic i64, ptr %313 monotonic, align 8
  %316 = icmp eq i64 %315, 0
  br i1 %316, label %317, label %327

317:                                              ; preds = %312, %321
  %318 = phi i64 [ %319, %321 ], [ 0, %312 ]
  %319 = add nuw nsw i64 %318, 1
  %320 = icmp eq i64 %319, %314
  br i1 %320, label %364, label %321, !llvm.loop !57

321:                                              ; preds = %317
  %322 = getelementptr inbounds i64, ptr %313, i64 %319
  %323 = load atomic i64, ptr %322 monotonic, align 8
  %324 = icmp eq i64 %323, 0
  br i1 %324, label %317, label %325, !llvm.loop !57

325:                                              ; preds = %321
  %326 = icmp ult i64 %319, %314
  br i1 %326, label %327, label %364

327:                                              ; preds = %325, %312
  %328 = atomicrmw add ptr %25, i32 1 seq_cst, align 32
  %329 = load ptr, ptr %27, align 8, !tbaa !38
  %330 = getelementptr inbounds i8, ptr %329, i64 48
  %331 = load atomic i32, ptr %330 acquire, align 8
  %332 = icmp sgt i32 %331, 0
  br i1 %332, label %333, label %362

333:                                              ; preds = %327
  %334 = getelementptr inbounds i8, ptr %329, i64 80
  %335 = zext i32 %307 to i64
  %336 = shl i64 %335, 48
  %337 = or i64 %336, %276
  %338 = zext nneg i32 %331 to i64
  br label %339

339:                                              ; preds = %356, %333
  %340 = phi i64 [ 0, %333 ], [ %357, %356 ]
  %341 = phi i1 [ true, %333 ], [ %358, %356 ]
  %342 = getelementptr inbounds [8192 x ptr], ptr %334, i64 0, i64 %340
  %343 = load ptr, ptr %342, align 8, !tbaa !10
  %344 = load atomic i64, ptr %343 monotonic, align 128
  br label %345

345:                                              ; preds = %348, %339
  %346 = phi i64 [ %344, %339 ], [ %351, %348 ]
  %347 = icmp ult i64 %346, 2
  br i1 %347, label %348, label %356

348:                                              ; preds = %345
  %349 = cmpxchg weak ptr %343, i64 %346, i64 %337 seq_cst seq_cst, align 128
  %350 = extractvalue { i64, i1 } %349, 1
  %351 = extractvalue { i64, i1 } %349, 0
  br i1 %350, label %352, label %345, !llvm.loop !47

352:                                              ; preds = %348
  %353 = icmp eq i64 %346, 1
  br i1 %353, label %354, label %360

354:                                              ; preds = %352
  %355 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %343, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br i1 %341, label %382, label %362

356:                                              ; preds = %345
  %357 = add nuw nsw i64 %340, 1
  %358 = icmp ult i64 %357, %338
  %359 = icmp eq i64 %357, %338
  br i1 %359, label %360, label %339, !llvm.loop !58

360:                                              ; preds = %356, %352
  %361 = phi i1 [ %341, %352 ], [ %358, %356 ]
  br i1 %361, label %382, label %362

362:                                              ; preds = %360, %354, %327
  %363 = atomicrmw sub ptr %25, i32 1 seq_cst, align 32
  br label %364

364:                                              ; preds = %317, %362, %325, %309, %302
  %365 = load ptr, ptr %23, align 16, !tbaa !34
  %366 = load ptr, ptr %24, align 8, !tbaa !36
  %367 = call i32 %365(i32 noundef %307, ptr noundef nonnull %8, ptr noundef %366) #14
  %368 = icmp eq i32 %367, 0
  br i1 %368, label %382, label %369

369:                                              ; preds = %364
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #14
  store ptr null, ptr %6, align 8, !tbaa !10
  %370 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %370(ptr noundef nonnull %6) #14
  store atomic i8 1, ptr %29 seq_cst, align 8
  %371 = load ptr, ptr %6, align 8, !tbaa !10
  %372 = icmp eq ptr %371, null
  br i1 %372, label %381, label %373

373:                                              ; preds = %369
  %374 = ptrtoint ptr %371 to i64
  %375 = cmpxchg ptr %28, i64 0, i64 %374 seq_cst seq_cst, align 8
  %376 = extractvalue { i64, i1 } %375, 1
  br i1 %376, label %381, label %377

377:                                              ; preds = %373
  %378 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %379 = load ptr, ptr %6, align 8, !tbaa !10
  %380 = call i32 %378(ptr noundef %379) #14
  br label %381

381:                                              ; preds = %377, %373, %369
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #14
  br label %382

382:                                              ; preds = %381, %364, %360, %354
  %383 = load i32, ptr %30, align 4, !tbaa !39
  %384 = icmp sgt i32 %383, 0
  br i1 %384, label %300, label %308

385:                                              ; preds = %308
  %386 = load atomic i32, ptr %25 acquire, align 32
  %387 = icmp eq i32 %386, 0
  br i1 %387, label %433, label %388

388:                                              ; preds = %385
  %389 = load ptr, ptr %27, align 8, !tbaa !38
  %390 = getelementptr inbounds i8, ptr %389, i64 48
  %391 = load atomic i32, ptr %390 seq_cst, align 8
  %392 = icmp sgt i32 %391, 0
  br i1 %392, label %393, label %433

393:                                              ; preds = %388
  %394 = ptrtoint ptr %8 to i64
  %395 = zext nneg i32 %391 to i64
  br label %396

396:                                              ; preds = %430, %393
  %397 = phi i64 [ 0, %393 ], [ %431, %430 ]
  %398 = load ptr, ptr %27, align 8, !tbaa !38
  %399 = getelementptr inbounds i8, ptr %398, i64 80
  %400 = getelementptr inbounds [8192 x ptr], ptr %399, i64 0, i64 %397
  %401 = load ptr, ptr %400, align 8, !tbaa !10
  %402 = load atomic i64, ptr %401 seq_cst, align 128
  %403 = and i64 %402, 281474976710655
  %404 = icmp eq i64 %403, %394
  br i1 %404, label %405, label %430

405:                                              ; preds = %396
  %406 = cmpxchg ptr %401, i64 %402, i64 0 seq_cst seq_cst, align 128
  %407 = extractvalue { i64, i1 } %406, 1
  br i1 %407, label %408, label %430

408:                                              ; preds = %405
  %409 = extractvalue { i64, i1 } %406, 0
  %410 = lshr i64 %409, 48
  %411 = trunc nuw nsw i64 %410 to i32
  %412 = atomicrmw sub ptr %25, i32 1 seq_cst, align 32
  %413 = load ptr, ptr %23, align 16, !tbaa !34
  %414 = load ptr, ptr %24, align 8, !tbaa !36
  %415 = call i32 %413(i32 noundef %411, ptr noundef nonnull %8, ptr noundef %414) #14
  %416 = icmp eq i32 %415, 0
  br i1 %416, label %430, label %417

417:                                              ; preds = %408
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %5) #14
  store ptr null, ptr %5, align 8, !tbaa !10
  %418 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %418(ptr noundef nonnull %5) #14
  store atomic i8 1, ptr %29 seq_cst, align 8
  %419 = load ptr, ptr %5, align 8, !tbaa !10
  %420 = icmp eq ptr %419, null
  br i1 %420, label %429, label %421

421:                                              ; preds = %417
  %422 = ptrtoint ptr %419 to i64
  %423 = cmpxchg ptr %28, i64 0, i64 %422 seq_cst seq_cst, align 8
  %424 = extractvalue { i64, i1 } %423, 1
  br i1 %424, label %429, label %425

425:                                              ; preds = %421
  %426 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %427 = load ptr, ptr %5, align 8, !tbaa !10
  %428 = call i32 %426(ptr noundef %427) #14
  br label %429

429:                                              ; preds = %425, %421, %417
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %5) #14
  br label %430

430:                                              ; preds = %429, %408, %405, %396
  %431 = add nuw nsw i64 %397, 1
  %432 = icmp eq i64 %431, %395
  br i1 %432, label %433, label %396, !llvm.loop !59

433:                                              ; preds = %430, %388, %385, %308
  %434 = load i32, ptr %26, align 4, !tbaa !37
  %435 = sext i32 %434 to i64
  %436 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %435
  %437 = load i64, ptr %436, align 8, !tbaa !60
  %438 = icmp eq i32 %434, 2
  %439 = icmp eq i32 %434, 1
  %440 = getelementptr inbounds i8, ptr %4, i64 8
  br label %441

441:                                              ; preds = %479, %433
  %442 = phi i64 [ 0, %433 ], [ %480, %479 ]
  %443 = phi i32 [ 0, %433 ], [ %481, %479 ]
  br label %444

444:                                              ; preds = %460, %441
  %445 = phi i32 [ %443, %441 ], [ %449, %460 ]
  %446 = load atomic i32, ptr %25 acquire, align 32
  switch i32 %446, label %447 [
    i32 0, label %482
    i32 -2147483648, label %482
  ]

447:                                              ; preds = %444
  br i1 %438, label %471, label %448

448:                                              ; preds = %447
  call void @llvm.x86.sse2.pause()
  %449 = add i32 %445, 1
  %450 = and i32 %449, 15
  %451 = icmp eq i32 %450, 0
  br i1 %451, label %452, label %460

452:                                              ; preds = %448
  br i1 %439, label %453, label %461

453:                                              ; preds = %452
  %454 = icmp ugt i32 %449, 1024
  br i1 %454, label %455, label %457

455:                                              ; preds = %453
  %456 = call i32 @sched_yield() #14
  br label %457

457:                                              ; preds = %455, %453
  %458 = load atomic i32, ptr @always_users monotonic, align 4
  %459 = icmp sgt i32 %458, 0
  br i1 %459, label %460, label %471

460:                                              ; preds = %457, %448
  br label %444, !llvm.loop !61

461:                                              ; preds = %452
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #14
  %462 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #14
  %463 = load i64, ptr %4, align 8, !tbaa !62
  %464 = mul nsw i64 %463, 1000000000
  %465 = load i64, ptr %440, align 8, !tbaa !64
  %466 = add nsw i64 %464, %465
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #14
  %467 = icmp eq i64 %442, 0
  %468 = add nsw i64 %466, %437
  %469 = select i1 %467, i64 %468, i64 %442
  %470 = icmp slt i64 %466, %469
  br i1 %470, label %479, label %471

471:                                              ; preds = %457, %447, %461
  %472 = phi i32 [ %449, %461 ], [ %443, %447 ], [ %449, %457 ]
  %473 = phi i64 [ %469, %461 ], [ %442, %447 ], [ %442, %457 ]
  %474 = atomicrmw or ptr %25, i32 -2147483648 seq_cst, align 8
  %475 = or i32 %474, -2147483648
  %476 = icmp eq i32 %475, -2147483648
  br i1 %476, label %479, label %477

477:                                              ; preds = %471
  %478 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %25, i32 noundef 128, i32 noundef %475, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %479

479:                                              ; preds = %477, %471, %461
  %480 = phi i64 [ %469, %461 ], [ %473, %477 ], [ %473, %471 ]
  %481 = phi i32 [ %449, %461 ], [ %472, %477 ], [ %472, %471 ]
  br label %441, !llvm.loop !61

482:                                              ; preds = %444, %444
  %483 = load i32, ptr %253, align 8, !tbaa !41
  %484 = add nsw i32 %483, -1
  store i32 %484, ptr %253, align 8, !tbaa !41
  %485 = load ptr, ptr %31, align 64, !tbaa !40
  %486 = icmp eq ptr %485, %32
  br i1 %486, label %488, label %487

487:                                              ; preds = %482
  call void @free(ptr noundef %485) #14
  br label %488

488:                                              ; preds = %487, %482
  %489 = load atomic i8, ptr %29 seq_cst, align 8
  %490 = trunc i8 %489 to i1
  br i1 %490, label %491, label %499

491:                                              ; preds = %488
  %492 = load atomic i64, ptr %28 seq_cst, align 16
  %493 = icmp eq i64 %492, 0
  br i1 %493, label %499, label %494

494:                                              ; preds = %491
  %495 = inttoptr i64 %492 to ptr
  %496 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 32), align 8, !tbaa !65
  call void %496(ptr noundef nonnull %495) #14
  %497 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %498 = call i32 %497(ptr noundef nonnull %495) #14
  br label %499

499:                                              ; preds = %46, %488, %491, %494
  %500 = phi i32 [ %48, %46 ], [ 0, %488 ], [ -1, %494 ], [ -1, %491 ]
  call void @llvm.lifetime.end.p0(i64 104, ptr nonnull %8) #14
  br label %501

501:                                              ; preds = %499, %12
  %502 = phi i32 [ %500, %499 ], [ %14, %12 ]
  ret i32 %502
}

; Function Attrs: nounwind
define internal i32 @barrier(i32 noundef %0, ptr noundef %1) #2 {
  %3 = alloca %struct.timespec, align 8
  %4 = alloca %struct.timespec, align 8
  %5 = load ptr, ptr %1, align 8, !tbaa !31
  %6 = icmp eq ptr %5, %1
  br i1 %6, label %10, label %7

7:                                                ; preds = %2
  %8 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 8), align 8, !tbaa !66
  %9 = tail call i32 %8(i32 noundef %0, ptr noundef nonnull %1) #14
  br label %143

10:                                               ; preds = %2
  %11 = getelementptr inbounds i8, ptr %1, i64 72
  %12 = load atomic i32, ptr %11 seq_cst, align 8
  %13 = getelementptr inbounds i8, ptr %1, i64 76
  %14 = atomicrmw add ptr %13, i32 1 seq_cst, align 4
  %15 = add nsw i32 %14, 1
  %16 = getelementptr inbounds i8, ptr %1, i64 8
  %17 = load i32, ptr %16, align 8, !tbaa !33
  %18 = icmp eq i32 %15, %17
  br i1 %18, label %29, label %19

19:                                               ; preds = %10
  %20 = getelementptr inbounds i8, ptr %1, i64 56
  %21 = getelementptr inbounds i8, ptr %4, i64 8
  %22 = getelementptr inbounds i8, ptr %1, i64 60
  %23 = getelementptr inbounds i8, ptr %1, i64 64
  %24 = getelementptr inbounds i8, ptr %1, i64 32
  %25 = getelementptr inbounds i8, ptr %1, i64 40
  %26 = ptrtoint ptr %1 to i64
  %27 = getelementptr inbounds i8, ptr %1, i64 80
  %28 = getelementptr inbounds i8, ptr %3, i64 8
  br label %58

29:                                               ; preds = %10
  store atomic i32 0, ptr %13 seq_cst, align 4
  %30 = atomicrmw add ptr %11, i32 1 seq_cst, align 8
  %31 = getelementptr inbounds i8, ptr %1, i64 80
  %32 = load atomic i32, ptr %31 seq_cst, align 8
  %33 = icmp eq i32 %32, 0
  br i1 %33, label %143, label %34

34:                                               ; preds = %29
  %35 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %11, i32 noundef 129, i32 noundef 2147483647, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %143

36:                                               ; preds = %58, %43
  %37 = phi i32 [ %44, %43 ], [ %60, %58 ]
  %38 = load atomic i32, ptr %11 seq_cst, align 8
  %39 = icmp eq i32 %38, %12
  br i1 %39, label %40, label %143

40:                                               ; preds = %36
  %41 = load atomic i8, ptr %20 seq_cst, align 8
  %42 = trunc i8 %41 to i1
  br i1 %42, label %143, label %43

43:                                               ; preds = %40
  call void @llvm.x86.sse2.pause()
  %44 = add i32 %37, 1
  %45 = and i32 %44, 15
  %46 = icmp eq i32 %45, 0
  br i1 %46, label %47, label %36, !llvm.loop !67

47:                                               ; preds = %43
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #14
  %48 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #14
  %49 = load i64, ptr %4, align 8, !tbaa !62
  %50 = mul nsw i64 %49, 1000000000
  %51 = load i64, ptr %21, align 8, !tbaa !64
  %52 = add nsw i64 %50, %51
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #14
  %53 = icmp eq i64 %59, 0
  %54 = add nsw i64 %52, 50000
  %55 = select i1 %53, i64 %54, i64 %59
  %56 = icmp sgt i64 %59, %52
  %57 = select i1 %53, i1 true, i1 %56
  br i1 %57, label %142, label %61

58:                                               ; preds = %142, %19
  %59 = phi i64 [ 0, %19 ], [ %55, %142 ]
  %60 = phi i32 [ 0, %19 ], [ %44, %142 ]
  br label %36

61:                                               ; preds = %47, %87
  %62 = load i32, ptr %22, align 4, !tbaa !39
  %63 = icmp sgt i32 %62, 0
  br i1 %63, label %64, label %100

64:                                               ; preds = %61, %82
  %65 = phi i64 [ %83, %82 ], [ 0, %61 ]
  %66 = load ptr, ptr %23, align 8, !tbaa !40
  %67 = getelementptr inbounds i64, ptr %66, i64 %65
  %68 = load atomic i64, ptr %67 monotonic, align 8
  br label %69

69:                                               ; preds = %72, %64
  %70 = phi i64 [ %68, %64 ], [ %81, %72 ]
  %71 = icmp eq i64 %70, 0
  br i1 %71, label %82, label %72

72:                                               ; preds = %69
  %73 = sub i64 0, %70
  %74 = and i64 %70, %73
  %75 = load ptr, ptr %23, align 8, !tbaa !40
  %76 = getelementptr inbounds i64, ptr %75, i64 %65
  %77 = xor i64 %74, -1
  %78 = atomicrmw and ptr %76, i64 %77 seq_cst, align 8
  %79 = and i64 %78, %74
  %80 = icmp eq i64 %79, 0
  %81 = and i64 %78, %77
  br i1 %80, label %69, label %87, !llvm.loop !55

82:                                               ; preds = %69
  %83 = add nuw nsw i64 %65, 1
  %84 = load i32, ptr %22, align 4, !tbaa !39
  %85 = sext i32 %84 to i64
  %86 = icmp slt i64 %83, %85
  br i1 %86, label %64, label %100, !llvm.loop !68

87:                                               ; preds = %72
  %88 = call range(i64 0, 65) i64 @llvm.cttz.i64(i64 %70, i1 true)
  %89 = trunc nuw nsw i64 %88 to i32
  %90 = trunc nuw nsw i64 %65 to i32
  %91 = shl nsw i32 %90, 6
  %92 = or disjoint i32 %91, %89
  %93 = atomicrmw add ptr %24, i32 1 seq_cst, align 8
  %94 = call fastcc zeroext i1 @give_to_extra(ptr noundef nonnull %1, i32 noundef %92)
  br i1 %94, label %61, label %95, !llvm.loop !69

95:                                               ; preds = %87
  %96 = atomicrmw sub ptr %24, i32 1 seq_cst, align 8
  %97 = load ptr, ptr %23, align 8, !tbaa !40
  %98 = and i64 %65, 67108863
  %99 = getelementptr inbounds i64, ptr %97, i64 %98
  br label %133

100:                                              ; preds = %61, %82
  %101 = load ptr, ptr %25, align 8, !tbaa !38
  %102 = getelementptr inbounds i8, ptr %101, i64 48
  %103 = load atomic i32, ptr %102 seq_cst, align 8
  %104 = icmp sgt i32 %103, 0
  br i1 %104, label %105, label %138

105:                                              ; preds = %100
  %106 = zext nneg i32 %103 to i64
  br label %107

107:                                              ; preds = %130, %105
  %108 = phi i64 [ 0, %105 ], [ %131, %130 ]
  %109 = load ptr, ptr %25, align 8, !tbaa !38
  %110 = getelementptr inbounds i8, ptr %109, i64 80
  %111 = getelementptr inbounds [8192 x ptr], ptr %110, i64 0, i64 %108
  %112 = load ptr, ptr %111, align 8, !tbaa !10
  %113 = load atomic i64, ptr %112 seq_cst, align 128
  %114 = and i64 %113, 281474976710655
  %115 = icmp eq i64 %114, %26
  br i1 %115, label %116, label %130

116:                                              ; preds = %107
  %117 = cmpxchg ptr %112, i64 %113, i64 0 seq_cst seq_cst, align 128
  %118 = extractvalue { i64, i1 } %117, 1
  br i1 %118, label %119, label %130

119:                                              ; preds = %116
  %120 = extractvalue { i64, i1 } %117, 0
  %121 = lshr i64 %120, 48
  %122 = trunc nuw nsw i64 %121 to i32
  %123 = call fastcc zeroext i1 @give_to_extra(ptr noundef nonnull %1, i32 noundef %122)
  br i1 %123, label %130, label %124

124:                                              ; preds = %119
  %125 = atomicrmw sub ptr %24, i32 1 seq_cst, align 8
  %126 = load ptr, ptr %23, align 8, !tbaa !40
  %127 = lshr i64 %120, 54
  %128 = getelementptr inbounds i64, ptr %126, i64 %127
  %129 = and i64 %121, 63
  br label %133

130:                                              ; preds = %119, %116, %107
  %131 = add nuw nsw i64 %108, 1
  %132 = icmp eq i64 %131, %106
  br i1 %132, label %138, label %107, !llvm.loop !70

133:                                              ; preds = %124, %95
  %134 = phi i64 [ %88, %95 ], [ %129, %124 ]
  %135 = phi ptr [ %99, %95 ], [ %128, %124 ]
  %136 = shl nuw i64 1, %134
  %137 = atomicrmw or ptr %135, i64 %136 seq_cst, align 8
  br label %138

138:                                              ; preds = %130, %100, %133
  %139 = atomicrmw add ptr %27, i32 1 seq_cst, align 8
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #14
  store i64 0, ptr %3, align 8, !tbaa !62
  store i64 10000000, ptr %28, align 8, !tbaa !64
  %140 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %11, i32 noundef 128, i32 noundef %12, ptr noundef nonnull %3, ptr noundef null, i32 noundef 0) #14
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #14
  %141 = atomicrmw sub ptr %27, i32 1 seq_cst, align 8
  br label %142

142:                                              ; preds = %138, %47
  br label %58, !llvm.loop !67

143:                                              ; preds = %40, %36, %34, %29, %7
  %144 = phi i32 [ %9, %7 ], [ 0, %34 ], [ 0, %29 ], [ 0, %36 ], [ -1, %40 ]
  ret i32 %144
}

; Function Attrs: nounwind
define internal i32 @number(ptr nocapture readnone %0, ptr nocapture readnone %1, i32 %2, ptr noundef %3) #2 {
  %5 = load i32, ptr @state_key, align 4, !tbaa !13
  %6 = tail call ptr @pthread_getspecific(i32 noundef %5) #14
  %7 = icmp eq ptr %6, null
  br i1 %7, label %8, label %12

8:                                                ; preds = %4
  %9 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 16), align 8, !tbaa !71
  %10 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 48), align 8, !tbaa !72
  %11 = tail call i32 %9(ptr noundef %10, ptr noundef null, i32 noundef 0, ptr noundef %3) #14
  br label %18

12:                                               ; preds = %4
  store i32 1, ptr %3, align 8, !tbaa !8
  %13 = getelementptr inbounds i8, ptr %3, i64 4
  store i32 0, ptr %13, align 4, !tbaa !9
  %14 = getelementptr inbounds i8, ptr %6, i64 8
  %15 = load i32, ptr %14, align 8, !tbaa !27
  %16 = sext i32 %15 to i64
  %17 = getelementptr inbounds i8, ptr %3, i64 8
  store i64 %16, ptr %17, align 8, !tbaa !2
  br label %18

18:                                               ; preds = %12, %8
  %19 = phi i32 [ 0, %12 ], [ %11, %8 ]
  ret i32 %19
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #4

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: nounwind
declare i32 @pthread_key_create(ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nounwind willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @free(ptr allocptr nocapture noundef) #6

declare i32 @__register_atfork(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #7

; Function Attrs: nounwind
define internal void @forget_threads() #2 {
  %1 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @pools_lock, ptr noundef null) #14
  %2 = load ptr, ptr @pools, align 8, !tbaa !10
  %3 = icmp eq ptr %2, null
  br i1 %3, label %4, label %5

4:                                                ; preds = %5, %0
  ret void

5:                                                ; preds = %0, %5
  %6 = phi ptr [ %11, %5 ], [ %2, %0 ]
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %7, ptr noundef null) #14
  %9 = getelementptr inbounds i8, ptr %6, i64 48
  store atomic i32 0, ptr %9 seq_cst, align 8
  %10 = getelementptr inbounds i8, ptr %6, i64 72
  store ptr null, ptr %10, align 8, !tbaa !73
  %11 = load ptr, ptr %6, align 8, !tbaa !10
  %12 = icmp eq ptr %11, null
  br i1 %12, label %4, label %5, !llvm.loop !74
}

; Function Attrs: nounwind
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare ptr @pthread_getspecific(i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_setspecific(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nounwind willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr #8

; Function Attrs: nounwind
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nounwind willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @malloc(i64 noundef) local_unnamed_addr #9

; Function Attrs: nounwind
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #10

; Function Attrs: mustprogress nofree nounwind willreturn allockind("alloc,uninitialized,aligned") allocsize(1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @aligned_alloc(i64 allocalign noundef, i64 noundef) local_unnamed_addr #11

; Function Attrs: nounwind
define internal fastcc zeroext i1 @start_thread(ptr nocapture noundef readonly %0, i32 noundef %1, ptr noundef %2, ptr noundef %3) unnamed_addr #2 {
  %5 = alloca %struct.cpu_set_t, align 8
  %6 = alloca %struct.__sigset_t, align 8
  %7 = alloca %struct.__sigset_t, align 8
  %8 = alloca %union.pthread_attr_t, align 8
  %9 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #14
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %5, i8 0, i64 128, i1 false)
  %10 = getelementptr inbounds i8, ptr %0, i64 56
  %11 = load i8, ptr %10, align 8, !tbaa !14, !range !17, !noundef !18
  %12 = trunc nuw i8 %11 to i1
  %13 = icmp sgt i32 %1, -1
  %14 = and i1 %13, %12
  br i1 %14, label %18, label %15

15:                                               ; preds = %4
  %16 = getelementptr inbounds i8, ptr %0, i64 60
  %17 = load i32, ptr %16, align 4, !tbaa !19
  br label %38

18:                                               ; preds = %4
  %19 = add nuw nsw i32 %1, 1
  %20 = getelementptr inbounds i8, ptr %0, i64 60
  %21 = load i32, ptr %20, align 4, !tbaa !19
  %22 = icmp slt i32 %19, %21
  br i1 %22, label %23, label %38

23:                                               ; preds = %18
  %24 = getelementptr inbounds i8, ptr %0, i64 64
  %25 = load ptr, ptr %24, align 8, !tbaa !20
  %26 = zext nneg i32 %19 to i64
  %27 = getelementptr inbounds i32, ptr %25, i64 %26
  %28 = load i32, ptr %27, align 4, !tbaa !13
  %29 = icmp ult i32 %28, 1024
  br i1 %29, label %30, label %95

30:                                               ; preds = %23
  %31 = zext nneg i32 %28 to i64
  %32 = and i64 %31, 63
  %33 = shl nuw i64 1, %32
  %34 = lshr i64 %31, 6
  %35 = getelementptr inbounds i64, ptr %5, i64 %34
  %36 = load i64, ptr %35, align 8, !tbaa !60
  %37 = or i64 %36, %33
  store i64 %37, ptr %35, align 8, !tbaa !60
  br label %95

38:                                               ; preds = %15, %18
  %39 = phi i32 [ %17, %15 ], [ %21, %18 ]
  %40 = icmp sgt i32 %39, 0
  br i1 %40, label %41, label %95

41:                                               ; preds = %38
  %42 = getelementptr inbounds i8, ptr %0, i64 64
  %43 = load ptr, ptr %42, align 8, !tbaa !20
  %44 = zext nneg i32 %39 to i64
  %45 = and i64 %44, 1
  %46 = icmp eq i32 %39, 1
  br i1 %46, label %80, label %47

47:                                               ; preds = %41
  %48 = and i64 %44, 2147483646
  br label %49

49:                                               ; preds = %76, %47
  %50 = phi i64 [ 0, %47 ], [ %77, %76 ]
  %51 = phi i64 [ 0, %47 ], [ %78, %76 ]
  %52 = getelementptr inbounds i32, ptr %43, i64 %50
  %53 = load i32, ptr %52, align 4, !tbaa !13
  %54 = icmp ult i32 %53, 1024
  br i1 %54, label %55, label %63

55:                                               ; preds = %49
  %56 = zext nneg i32 %53 to i64
  %57 = and i64 %56, 63
  %58 = shl nuw i64 1, %57
  %59 = lshr i64 %56, 6
  %60 = getelementptr inbounds i64, ptr %5, i64 %59
  %61 = load i64, ptr %60, align 8, !tbaa !60
  %62 = or i64 %61, %58
  store i64 %62, ptr %60, align 8, !tbaa !60
  br label %63

63:                                               ; preds = %49, %55
  %64 = or disjoint i64 %50, 1
  %65 = getelementptr inbounds i32, ptr %43, i64 %64
  %66 = load i32, ptr %65, align 4, !tbaa !13
  %67 = icmp ult i32 %66, 1024
  br i1 %67, label %68, label %76

68:                                               ; preds = %63
  %69 = zext nneg i32 %66 to i64
  %70 = and i64 %69, 63
  %71 = shl nuw i64 1, %70
  %72 = lshr i64 %69, 6
  %73 = getelementptr inbounds i64, ptr %5, i64 %72
  %74 = load i64, ptr %73, align 8, !tbaa !60
  %75 = or i64 %74, %71
  store i64 %75, ptr %73, align 8, !tbaa !60
  br label %76

76:                                               ; preds = %68, %63
  %77 = add nuw nsw i64 %50, 2
  %78 = add i64 %51, 2
  %79 = icmp eq i64 %78, %48
  br i1 %79, label %80, label %49, !llvm.loop !75

80:                                               ; preds = %76, %41
  %81 = phi i64 [ 0, %41 ], [ %77, %76 ]
  %82 = icmp eq i64 %45, 0
  br i1 %82, label %95, label %83

83:                                               ; preds = %80
  %84 = getelementptr inbounds i32, ptr %43, i64 %81
  %85 = load i32, ptr %84, align 4, !tbaa !13
  %86 = icmp ult i32 %85, 1024
  br i1 %86, label %87, label %95

87:                                               ; preds = %83
  %88 = zext nneg i32 %85 to i64
  %89 = and i64 %88, 63
  %90 = shl nuw i64 1, %89
  %91 = lshr i64 %88, 6
  %92 = getelementptr inbounds i64, ptr %5, i64 %91
  %93 = load i64, ptr %92, align 8, !tbaa !60
  %94 = or i64 %93, %90
  store i64 %94, ptr %92, align 8, !tbaa !60
  br label %95

95:                                               ; preds = %80, %87, %83, %38, %30, %23
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %6) #14
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %7) #14
  %96 = call i32 @sigfillset(ptr noundef nonnull %6) #14
  %97 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 4) #14
  %98 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 11) #14
  %99 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 7) #14
  %100 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 8) #14
  %101 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 5) #14
  %102 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef 31) #14
  call void @llvm.lifetime.start.p0(i64 56, ptr nonnull %8) #14
  %103 = call i32 @pthread_attr_init(ptr noundef nonnull %8) #14
  %104 = call i32 @pthread_attr_setdetachstate(ptr noundef nonnull %8, i32 noundef 1) #14
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #14
  %105 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %6, ptr noundef nonnull %7) #14
  %106 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #14
  %107 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #14
  %108 = icmp eq i32 %107, 22
  br i1 %108, label %109, label %113

109:                                              ; preds = %95
  %110 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %5) #14
  %111 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #14
  %112 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #14
  br label %113

113:                                              ; preds = %109, %95
  %114 = phi i32 [ %112, %109 ], [ %107, %95 ]
  %115 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %7, ptr noundef null) #14
  %116 = call i32 @pthread_attr_destroy(ptr noundef nonnull %8) #14
  %117 = icmp eq i32 %114, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #14
  call void @llvm.lifetime.end.p0(i64 56, ptr nonnull %8) #14
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %7) #14
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %6) #14
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #14
  ret i1 %117
}

; Function Attrs: noreturn nounwind
define internal noundef ptr @run_worker(ptr noundef %0) #12 {
  %2 = alloca %struct.timespec, align 8
  %3 = alloca ptr, align 8
  %4 = alloca ptr, align 8
  %5 = getelementptr inbounds i8, ptr %0, i64 8
  %6 = load ptr, ptr %5, align 8, !tbaa !43
  %7 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #18
  %8 = icmp eq ptr %7, null
  br i1 %8, label %14, label %9

9:                                                ; preds = %1
  store ptr %6, ptr %7, align 8, !tbaa !25
  %10 = getelementptr inbounds i8, ptr %7, i64 8
  store i32 1, ptr %10, align 8, !tbaa !27
  %11 = getelementptr inbounds i8, ptr %7, i64 12
  store i32 2, ptr %11, align 4, !tbaa !28
  %12 = load i32, ptr @state_key, align 4, !tbaa !13
  %13 = tail call i32 @pthread_setspecific(i32 noundef %12, ptr noundef nonnull %7) #14
  br label %14

14:                                               ; preds = %1, %9
  %15 = tail call i64 @pthread_self() #21
  %16 = tail call i32 @pthread_setname_np(i64 noundef %15, ptr noundef nonnull @.str) #14
  %17 = getelementptr inbounds i8, ptr %2, i64 8
  br label %18

18:                                               ; preds = %156, %14
  %19 = phi i32 [ 0, %14 ], [ %157, %156 ]
  %20 = phi i64 [ 0, %14 ], [ %158, %156 ]
  %21 = phi i64 [ 50000, %14 ], [ %159, %156 ]
  %22 = load atomic i64, ptr %0 acquire, align 128
  %23 = icmp ugt i64 %22, 2
  br i1 %23, label %24, label %123

24:                                               ; preds = %18
  %25 = cmpxchg ptr %0, i64 %22, i64 2 seq_cst seq_cst, align 128
  %26 = extractvalue { i64, i1 } %25, 1
  br i1 %26, label %27, label %156

27:                                               ; preds = %24
  %28 = and i64 %22, 281474976710655
  %29 = inttoptr i64 %28 to ptr
  %30 = getelementptr inbounds i8, ptr %29, i64 36
  %31 = load i32, ptr %30, align 4, !tbaa !37
  %32 = sext i32 %31 to i64
  %33 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %32
  %34 = load i64, ptr %33, align 8, !tbaa !60
  %35 = lshr i64 %22, 48
  %36 = trunc nuw nsw i64 %35 to i32
  %37 = getelementptr inbounds i8, ptr %29, i64 16
  %38 = load ptr, ptr %37, align 8, !tbaa !34
  %39 = getelementptr inbounds i8, ptr %29, i64 24
  %40 = load ptr, ptr %39, align 8, !tbaa !36
  %41 = call i32 %38(i32 noundef %36, ptr noundef %29, ptr noundef %40) #14
  %42 = icmp eq i32 %41, 0
  br i1 %42, label %58, label %43

43:                                               ; preds = %27
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #14
  store ptr null, ptr %4, align 8, !tbaa !10
  %44 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %44(ptr noundef nonnull %4) #14
  %45 = getelementptr inbounds i8, ptr %29, i64 56
  store atomic i8 1, ptr %45 seq_cst, align 8
  %46 = load ptr, ptr %4, align 8, !tbaa !10
  %47 = icmp eq ptr %46, null
  br i1 %47, label %57, label %48

48:                                               ; preds = %43
  %49 = getelementptr inbounds i8, ptr %29, i64 48
  %50 = ptrtoint ptr %46 to i64
  %51 = cmpxchg ptr %49, i64 0, i64 %50 seq_cst seq_cst, align 8
  %52 = extractvalue { i64, i1 } %51, 1
  br i1 %52, label %57, label %53

53:                                               ; preds = %48
  %54 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %55 = load ptr, ptr %4, align 8, !tbaa !10
  %56 = call i32 %54(ptr noundef %55) #14
  br label %57

57:                                               ; preds = %53, %48, %43
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #14
  br label %58

58:                                               ; preds = %27, %57
  %59 = getelementptr inbounds i8, ptr %29, i64 60
  %60 = load i32, ptr %59, align 4, !tbaa !39
  %61 = icmp sgt i32 %60, 0
  br i1 %61, label %62, label %91

62:                                               ; preds = %58
  %63 = getelementptr inbounds i8, ptr %29, i64 64
  %64 = getelementptr inbounds i8, ptr %29, i64 56
  %65 = getelementptr inbounds i8, ptr %29, i64 48
  br label %66

66:                                               ; preds = %89, %62
  %67 = phi i64 [ 0, %62 ], [ %90, %89 ]
  %68 = load ptr, ptr %63, align 8, !tbaa !40
  %69 = getelementptr inbounds i64, ptr %68, i64 %67
  %70 = load atomic i64, ptr %69 monotonic, align 8
  br label %71

71:                                               ; preds = %74, %66
  %72 = phi i64 [ %70, %66 ], [ %83, %74 ]
  %73 = icmp eq i64 %72, 0
  br i1 %73, label %84, label %74

74:                                               ; preds = %71
  %75 = sub i64 0, %72
  %76 = and i64 %72, %75
  %77 = load ptr, ptr %63, align 8, !tbaa !40
  %78 = getelementptr inbounds i64, ptr %77, i64 %67
  %79 = xor i64 %76, -1
  %80 = atomicrmw and ptr %78, i64 %79 seq_cst, align 8
  %81 = and i64 %80, %76
  %82 = icmp eq i64 %81, 0
  %83 = and i64 %80, %79
  br i1 %82, label %71, label %97, !llvm.loop !55

84:                                               ; preds = %71
  %85 = add nuw nsw i64 %67, 1
  %86 = load i32, ptr %59, align 4, !tbaa !39
  %87 = sext i32 %86 to i64
  %88 = icmp slt i64 %85, %87
  br i1 %88, label %89, label %91

89:                                               ; preds = %84, %120
  %90 = phi i64 [ %85, %84 ], [ 0, %120 ]
  br label %66, !llvm.loop !76

91:                                               ; preds = %120, %84, %58
  store atomic i64 0, ptr %0 release, align 128
  %92 = getelementptr inbounds i8, ptr %29, i64 32
  %93 = atomicrmw sub ptr %92, i32 1 seq_cst, align 8
  %94 = icmp eq i32 %93, -2147483647
  br i1 %94, label %95, label %156

95:                                               ; preds = %91
  %96 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %92, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %156

97:                                               ; preds = %74
  %98 = trunc nuw nsw i64 %67 to i32
  %99 = shl nsw i32 %98, 6
  %100 = call range(i64 0, 65) i64 @llvm.cttz.i64(i64 %72, i1 true)
  %101 = trunc nuw nsw i64 %100 to i32
  %102 = or disjoint i32 %99, %101
  %103 = load ptr, ptr %37, align 8, !tbaa !34
  %104 = load ptr, ptr %39, align 8, !tbaa !36
  %105 = call i32 %103(i32 noundef %102, ptr noundef nonnull %29, ptr noundef %104) #14
  %106 = icmp eq i32 %105, 0
  br i1 %106, label %120, label %107

107:                                              ; preds = %97
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #14
  store ptr null, ptr %3, align 8, !tbaa !10
  %108 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %108(ptr noundef nonnull %3) #14
  store atomic i8 1, ptr %64 seq_cst, align 8
  %109 = load ptr, ptr %3, align 8, !tbaa !10
  %110 = icmp eq ptr %109, null
  br i1 %110, label %119, label %111

111:                                              ; preds = %107
  %112 = ptrtoint ptr %109 to i64
  %113 = cmpxchg ptr %65, i64 0, i64 %112 seq_cst seq_cst, align 8
  %114 = extractvalue { i64, i1 } %113, 1
  br i1 %114, label %119, label %115

115:                                              ; preds = %111
  %116 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %117 = load ptr, ptr %3, align 8, !tbaa !10
  %118 = call i32 %116(ptr noundef %117) #14
  br label %119

119:                                              ; preds = %115, %111, %107
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #14
  br label %120

120:                                              ; preds = %97, %119
  %121 = load i32, ptr %59, align 4, !tbaa !39
  %122 = icmp sgt i32 %121, 0
  br i1 %122, label %89, label %91

123:                                              ; preds = %18
  %124 = icmp eq i64 %21, 0
  br i1 %124, label %148, label %125

125:                                              ; preds = %123
  call void @llvm.x86.sse2.pause()
  %126 = add i32 %19, 1
  %127 = and i32 %126, 15
  %128 = icmp eq i32 %127, 0
  br i1 %128, label %129, label %156

129:                                              ; preds = %125
  %130 = icmp eq i64 %21, 9223372036854775807
  br i1 %130, label %131, label %138

131:                                              ; preds = %129
  %132 = icmp ugt i32 %126, 1024
  br i1 %132, label %133, label %135

133:                                              ; preds = %131
  %134 = call i32 @sched_yield() #14
  br label %135

135:                                              ; preds = %133, %131
  %136 = load atomic i32, ptr @always_users monotonic, align 4
  %137 = icmp sgt i32 %136, 0
  br i1 %137, label %156, label %148

138:                                              ; preds = %129
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #14
  %139 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #14
  %140 = load i64, ptr %2, align 8, !tbaa !62
  %141 = mul nsw i64 %140, 1000000000
  %142 = load i64, ptr %17, align 8, !tbaa !64
  %143 = add nsw i64 %141, %142
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #14
  %144 = icmp eq i64 %20, 0
  %145 = add nsw i64 %143, %21
  %146 = select i1 %144, i64 %145, i64 %20
  %147 = icmp slt i64 %143, %146
  br i1 %147, label %156, label %148

148:                                              ; preds = %123, %135, %138
  %149 = phi i64 [ %146, %138 ], [ %20, %135 ], [ %20, %123 ]
  %150 = phi i32 [ %126, %138 ], [ %126, %135 ], [ %19, %123 ]
  %151 = cmpxchg ptr %0, i64 %22, i64 1 seq_cst seq_cst, align 128
  %152 = extractvalue { i64, i1 } %151, 1
  br i1 %152, label %153, label %156

153:                                              ; preds = %148
  %154 = load atomic i64, ptr %0 seq_cst, align 128
  %155 = icmp eq i64 %154, 1
  br i1 %155, label %160, label %156

156:                                              ; preds = %160, %153, %125, %135, %95, %91, %138, %148, %24
  %157 = phi i32 [ %19, %24 ], [ %126, %138 ], [ %150, %148 ], [ 0, %91 ], [ 0, %95 ], [ %126, %135 ], [ %126, %125 ], [ %150, %153 ], [ %150, %160 ]
  %158 = phi i64 [ %20, %24 ], [ %146, %138 ], [ %149, %148 ], [ 0, %91 ], [ 0, %95 ], [ %20, %135 ], [ %20, %125 ], [ %149, %153 ], [ %149, %160 ]
  %159 = phi i64 [ %21, %24 ], [ %21, %138 ], [ %21, %148 ], [ %34, %91 ], [ %34, %95 ], [ 9223372036854775807, %135 ], [ %21, %125 ], [ %21, %153 ], [ %21, %160 ]
  br label %18

160:                                              ; preds = %153, %160
  %161 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %0, i32 noundef 128, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  %162 = load atomic i64, ptr %0 seq_cst, align 128
  %163 = icmp eq i64 %162, 1
  br i1 %163, label %160, label %156, !llvm.loop !77
}

; Function Attrs: nounwind
declare i32 @sigfillset(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @sigdelset(ptr noundef, i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_attr_init(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_attr_setdetachstate(ptr noundef, i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_sigmask(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_attr_setaffinity_np(ptr noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_attr_destroy(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @pthread_setname_np(i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind willreturn memory(none)
declare i64 @pthread_self() local_unnamed_addr #13

; Function Attrs: nounwind
declare i64 @syscall(i64 noundef, ...) local_unnamed_addr #5

; Function Attrs: nounwind
declare void @llvm.x86.sse2.pause() #14

; Function Attrs: nounwind
declare i32 @sched_yield() local_unnamed_addr #5

; Function Attrs: nounwind
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind willreturn memory(none)
declare ptr @__errno_location() local_unnamed_addr #13

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.cttz.i64(i64, i1 immarg) #15

; Function Attrs: nounwind
define internal fastcc noundef zeroext i1 @give_to_extra(ptr noundef %0, i32 noundef %1) unnamed_addr #2 {
  %3 = getelementptr inbounds i8, ptr %0, i64 40
  %4 = load ptr, ptr %3, align 8, !tbaa !38
  %5 = getelementptr inbounds i8, ptr %4, i64 8
  %6 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %5) #14
  %7 = getelementptr inbounds i8, ptr %4, i64 72
  %8 = load ptr, ptr %7, align 8, !tbaa !73
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %14

10:                                               ; preds = %2
  %11 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #14
  %12 = tail call noalias dereferenceable_or_null(40) ptr @calloc(i64 noundef 1, i64 noundef 40) #18
  %13 = icmp eq ptr %12, null
  br i1 %13, label %29, label %22

14:                                               ; preds = %2
  %15 = load ptr, ptr %8, align 8, !tbaa !78
  store ptr %15, ptr %7, align 8, !tbaa !73
  %16 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #14
  %17 = getelementptr inbounds i8, ptr %8, i64 32
  store ptr %4, ptr %17, align 8, !tbaa !80
  %18 = getelementptr inbounds i8, ptr %8, i64 16
  store ptr %0, ptr %18, align 8, !tbaa !81
  %19 = getelementptr inbounds i8, ptr %8, i64 24
  store i32 %1, ptr %19, align 8, !tbaa !82
  %20 = getelementptr inbounds i8, ptr %8, i64 8
  store atomic i32 1, ptr %20 seq_cst, align 8
  %21 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %20, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %29

22:                                               ; preds = %10
  %23 = getelementptr inbounds i8, ptr %12, i64 32
  store ptr %4, ptr %23, align 8, !tbaa !80
  %24 = getelementptr inbounds i8, ptr %12, i64 16
  store ptr %0, ptr %24, align 8, !tbaa !81
  %25 = getelementptr inbounds i8, ptr %12, i64 24
  store i32 %1, ptr %25, align 8, !tbaa !82
  %26 = getelementptr inbounds i8, ptr %12, i64 8
  store atomic i32 1, ptr %26 seq_cst, align 8
  %27 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %4, i32 noundef -1, ptr noundef nonnull @run_extra, ptr noundef nonnull %12)
  br i1 %27, label %29, label %28

28:                                               ; preds = %22
  tail call void @free(ptr noundef nonnull %12) #14
  br label %29

29:                                               ; preds = %14, %22, %10, %28
  %30 = phi i1 [ false, %28 ], [ false, %10 ], [ true, %22 ], [ true, %14 ]
  ret i1 %30
}

; Function Attrs: nounwind
define internal noundef ptr @run_extra(ptr noundef %0) #2 {
  %2 = alloca %struct.timespec, align 8
  %3 = alloca ptr, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 32
  %5 = load ptr, ptr %4, align 8, !tbaa !80
  %6 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #18
  %7 = icmp eq ptr %6, null
  br i1 %7, label %13, label %8

8:                                                ; preds = %1
  store ptr %5, ptr %6, align 8, !tbaa !25
  %9 = getelementptr inbounds i8, ptr %6, i64 8
  store i32 1, ptr %9, align 8, !tbaa !27
  %10 = getelementptr inbounds i8, ptr %6, i64 12
  store i32 2, ptr %10, align 4, !tbaa !28
  %11 = load i32, ptr @state_key, align 4, !tbaa !13
  %12 = tail call i32 @pthread_setspecific(i32 noundef %11, ptr noundef nonnull %6) #14
  br label %13

13:                                               ; preds = %1, %8
  %14 = tail call i64 @pthread_self() #21
  %15 = tail call i32 @pthread_setname_np(i64 noundef %14, ptr noundef nonnull @.str.1) #14
  %16 = getelementptr inbounds i8, ptr %0, i64 16
  %17 = getelementptr inbounds i8, ptr %0, i64 24
  %18 = getelementptr inbounds i8, ptr %0, i64 8
  %19 = getelementptr inbounds i8, ptr %5, i64 8
  %20 = getelementptr inbounds i8, ptr %5, i64 72
  %21 = getelementptr inbounds i8, ptr %2, i64 8
  br label %22

22:                                               ; preds = %59, %13
  %23 = load ptr, ptr %16, align 8, !tbaa !81
  %24 = load i32, ptr %17, align 8, !tbaa !82
  %25 = getelementptr inbounds i8, ptr %23, i64 16
  %26 = load ptr, ptr %25, align 8, !tbaa !34
  %27 = getelementptr inbounds i8, ptr %23, i64 24
  %28 = load ptr, ptr %27, align 8, !tbaa !36
  %29 = call i32 %26(i32 noundef %24, ptr noundef %23, ptr noundef %28) #14
  %30 = icmp eq i32 %29, 0
  br i1 %30, label %46, label %31

31:                                               ; preds = %22
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #14
  store ptr null, ptr %3, align 8, !tbaa !10
  %32 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !53
  call void %32(ptr noundef nonnull %3) #14
  %33 = getelementptr inbounds i8, ptr %23, i64 56
  store atomic i8 1, ptr %33 seq_cst, align 8
  %34 = load ptr, ptr %3, align 8, !tbaa !10
  %35 = icmp eq ptr %34, null
  br i1 %35, label %45, label %36

36:                                               ; preds = %31
  %37 = getelementptr inbounds i8, ptr %23, i64 48
  %38 = ptrtoint ptr %34 to i64
  %39 = cmpxchg ptr %37, i64 0, i64 %38 seq_cst seq_cst, align 8
  %40 = extractvalue { i64, i1 } %39, 1
  br i1 %40, label %45, label %41

41:                                               ; preds = %36
  %42 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !54
  %43 = load ptr, ptr %3, align 8, !tbaa !10
  %44 = call i32 %42(ptr noundef %43) #14
  br label %45

45:                                               ; preds = %41, %36, %31
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #14
  br label %46

46:                                               ; preds = %22, %45
  %47 = load ptr, ptr %16, align 8, !tbaa !81
  store atomic i32 0, ptr %18 seq_cst, align 8
  %48 = call i32 @pthread_mutex_lock(ptr noundef nonnull %19) #14
  %49 = load ptr, ptr %20, align 8, !tbaa !73
  store ptr %49, ptr %0, align 8, !tbaa !78
  store ptr %0, ptr %20, align 8, !tbaa !73
  %50 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %19) #14
  %51 = getelementptr inbounds i8, ptr %47, i64 32
  %52 = atomicrmw sub ptr %51, i32 1 seq_cst, align 8
  %53 = icmp eq i32 %52, -2147483647
  br i1 %53, label %54, label %56

54:                                               ; preds = %46
  %55 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %51, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #14
  br label %56

56:                                               ; preds = %46, %54
  %57 = load atomic i32, ptr %18 seq_cst, align 8
  %58 = icmp eq i32 %57, 0
  br i1 %58, label %60, label %59

59:                                               ; preds = %67, %56
  br label %22

60:                                               ; preds = %56, %67
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #14
  store i64 1, ptr %2, align 8, !tbaa !62
  store i64 0, ptr %21, align 8, !tbaa !64
  %61 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %18, i32 noundef 128, i32 noundef 0, ptr noundef nonnull %2, ptr noundef null, i32 noundef 0) #14
  %62 = icmp eq i64 %61, 0
  br i1 %62, label %70, label %63

63:                                               ; preds = %60
  %64 = tail call ptr @__errno_location() #21
  %65 = load i32, ptr %64, align 4, !tbaa !13
  %66 = icmp eq i32 %65, 110
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #14
  br i1 %66, label %71, label %67

67:                                               ; preds = %63, %70, %80
  %68 = load atomic i32, ptr %18 seq_cst, align 8
  %69 = icmp eq i32 %68, 0
  br i1 %69, label %60, label %59, !llvm.loop !83

70:                                               ; preds = %60
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #14
  br label %67

71:                                               ; preds = %63
  %72 = call i32 @pthread_mutex_lock(ptr noundef nonnull %19) #14
  br label %73

73:                                               ; preds = %73, %71
  %74 = phi ptr [ %20, %71 ], [ %75, %73 ]
  %75 = load ptr, ptr %74, align 8, !tbaa !10
  %76 = icmp eq ptr %75, null
  %77 = icmp eq ptr %75, %0
  %78 = or i1 %76, %77
  br i1 %78, label %79, label %73, !llvm.loop !84

79:                                               ; preds = %73
  br i1 %76, label %80, label %82

80:                                               ; preds = %79
  %81 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %19) #14
  br label %67

82:                                               ; preds = %79
  %83 = load ptr, ptr %0, align 8, !tbaa !78
  store ptr %83, ptr %74, align 8, !tbaa !10
  %84 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %19) #14
  call void @free(ptr noundef %0) #14
  ret ptr null
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #16

; Function Attrs: nofree nounwind willreturn memory(argmem: read)
declare i32 @bcmp(ptr nocapture, ptr nocapture, i64) local_unnamed_addr #17

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: readwrite) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #1 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #2 = { nounwind "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #3 = { mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #4 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #5 = { nounwind "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #6 = { mustprogress nounwind willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #7 = { "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #8 = { mustprogress nofree nounwind willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #9 = { mustprogress nofree nounwind willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #10 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #11 = { mustprogress nofree nounwind willreturn allockind("alloc,uninitialized,aligned") allocsize(1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #12 = { noreturn nounwind "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #13 = { mustprogress nofree nosync nounwind willreturn memory(none) "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #14 = { nounwind }
attributes #15 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #16 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #17 = { nofree nounwind willreturn memory(argmem: read) }
attributes #18 = { nounwind allocsize(0,1) }
attributes #19 = { nounwind allocsize(0) }
attributes #20 = { nounwind allocsize(1) }
attributes #21 = { nounwind willreturn memory(none) }

!llvm.module.flags = !{!0, !1}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 8, !"PIC Level", i32 2}
!2 = !{!3, !7, i64 8}
!3 = !{!"", !4, i64 0, !4, i64 4, !7, i64 8}
!4 = !{!"int", !5, i64 0}
!5 = !{!"omnipotent char", !6, i64 0}
!6 = !{!"Simple C/C++ TBAA"}
!7 = !{!"long", !5, i64 0}
!8 = !{!3, !4, i64 0}
!9 = !{!3, !4, i64 4}
!10 = !{!11, !11, i64 0}
!11 = !{!"any pointer", !5, i64 0}
!12 = !{i64 0, i64 8, !10, i64 8, i64 8, !10, i64 16, i64 8, !10, i64 24, i64 8, !10, i64 32, i64 8, !10, i64 40, i64 8, !10, i64 48, i64 8, !10}
!13 = !{!4, !4, i64 0}
!14 = !{!15, !16, i64 56}
!15 = !{!"Pool", !11, i64 0, !5, i64 8, !5, i64 48, !5, i64 52, !16, i64 56, !4, i64 60, !11, i64 64, !11, i64 72, !5, i64 80}
!16 = !{!"_Bool", !5, i64 0}
!17 = !{i8 0, i8 2}
!18 = !{}
!19 = !{!15, !4, i64 60}
!20 = !{!15, !11, i64 64}
!21 = distinct !{!21, !22}
!22 = !{!"llvm.loop.mustprogress"}
!23 = !{!15, !11, i64 0}
!24 = distinct !{!24, !22}
!25 = !{!26, !11, i64 0}
!26 = !{!"", !11, i64 0, !4, i64 8, !4, i64 12, !4, i64 16}
!27 = !{!26, !4, i64 8}
!28 = !{!26, !4, i64 12}
!29 = !{!30, !11, i64 0}
!30 = !{!"", !11, i64 0, !11, i64 8, !11, i64 16, !11, i64 24, !11, i64 32, !11, i64 40, !11, i64 48}
!31 = !{!32, !11, i64 0}
!32 = !{!"", !11, i64 0, !4, i64 8}
!33 = !{!32, !4, i64 8}
!34 = !{!35, !11, i64 16}
!35 = !{!"", !32, i64 0, !11, i64 16, !11, i64 24, !5, i64 32, !4, i64 36, !11, i64 40, !5, i64 48, !5, i64 56, !4, i64 60, !11, i64 64, !5, i64 72, !5, i64 76, !5, i64 80, !5, i64 88}
!36 = !{!35, !11, i64 24}
!37 = !{!35, !4, i64 36}
!38 = !{!35, !11, i64 40}
!39 = !{!35, !4, i64 60}
!40 = !{!35, !11, i64 64}
!41 = !{!26, !4, i64 16}
!42 = !{!5, !5, i64 0}
!43 = !{!44, !11, i64 8}
!44 = !{!"", !5, i64 0, !11, i64 8, !4, i64 16}
!45 = !{!44, !4, i64 16}
!46 = distinct !{!46, !22}
!47 = distinct !{!47, !22}
!48 = distinct !{!48, !22}
!49 = distinct !{!49, !22}
!50 = distinct !{!50, !22}
!51 = distinct !{!51, !52}
!52 = !{!"llvm.loop.unroll.disable"}
!53 = !{!30, !11, i64 24}
!54 = !{!30, !11, i64 40}
!55 = distinct !{!55, !22}
!56 = distinct !{!56, !22}
!57 = distinct !{!57, !22}
!58 = distinct !{!58, !22}
!59 = distinct !{!59, !22}
!60 = !{!7, !7, i64 0}
!61 = distinct !{!61, !22}
!62 = !{!63, !7, i64 0}
!63 = !{!"timespec", !7, i64 0, !7, i64 8}
!64 = !{!63, !7, i64 8}
!65 = !{!30, !11, i64 32}
!66 = !{!30, !11, i64 8}
!67 = distinct !{!67, !22}
!68 = distinct !{!68, !22}
!69 = distinct !{!69, !22}
!70 = distinct !{!70, !22}
!71 = !{!30, !11, i64 16}
!72 = !{!30, !11, i64 48}
!73 = !{!15, !11, i64 72}
!74 = distinct !{!74, !22}
!75 = distinct !{!75, !22}
!76 = distinct !{!76, !22}
!77 = distinct !{!77, !22}
!78 = !{!79, !11, i64 0}
!79 = !{!"Extra", !11, i64 0, !5, i64 8, !11, i64 16, !4, i64 24, !11, i64 32}
!80 = !{!79, !11, i64 32}
!81 = !{!79, !11, i64 16}
!82 = !{!79, !4, i64 24}
!83 = distinct !{!83, !22}
!84 = distinct !{!84, !22}
