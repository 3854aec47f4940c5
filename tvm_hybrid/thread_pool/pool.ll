; Made by `python -m tools.thread_pool_code` of pool.c, sha256 baba5279c3244c4b1e339867b8019cfadf489ce7a47ecf99c59eacc48d6c7a68
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
@__const.start_thread.own = private unnamed_addr constant [6 x i32] [i32 4, i32 11, i32 7, i32 8, i32 5, i32 31], align 16
@.str = private unnamed_addr constant [11 x i8] c"tvm_hybrid\00", align 1
@spin_ns = internal unnamed_addr constant [3 x i64] [i64 100000, i64 9223372036854775807, i64 0], align 16
@.str.1 = private unnamed_addr constant [16 x i8] c"tvm_hybrid_more\00", align 1

; Function Attrs: mustprogress nofree norecurse nosync nounwind optsize willreturn memory(argmem: readwrite)
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

; Function Attrs: nounwind optsize
define internal i32 @start(ptr nocapture noundef readonly %0) #2 {
  tail call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) @tvm, ptr noundef nonnull align 8 dereferenceable(56) %0, i64 56, i1 false), !tbaa.struct !12
  %2 = tail call i32 @pthread_key_create(ptr noundef nonnull @state_key, ptr noundef nonnull @free) #21
  %3 = icmp eq i32 %2, 0
  br i1 %3, label %4, label %6

4:                                                ; preds = %1
  %5 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_threads, ptr noundef null) #21
  br label %6

6:                                                ; preds = %1, %4
  %7 = phi i32 [ %5, %4 ], [ %2, %1 ]
  ret i32 %7
}

; Function Attrs: nounwind optsize
define internal range(i32 0, 13) i32 @use(i32 noundef %0, i32 noundef %1, i32 noundef %2, ptr nocapture noundef readonly %3, i32 noundef %4) #2 {
  %6 = load i32, ptr @state_key, align 4, !tbaa !13
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #21
  %8 = icmp eq i32 %0, 0
  br i1 %8, label %9, label %12

9:                                                ; preds = %5
  %10 = load i32, ptr @state_key, align 4, !tbaa !13
  %11 = tail call i32 @pthread_setspecific(i32 noundef %10, ptr noundef null) #21
  tail call void @free(ptr noundef %7) #21
  br label %80

12:                                               ; preds = %5
  %13 = icmp ne i32 %2, 0
  %14 = zext i1 %13 to i8
  %15 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @pools_lock) #21
  %16 = load ptr, ptr @pools, align 8, !tbaa !10
  %17 = icmp eq ptr %16, null
  br i1 %17, label %40, label %18

18:                                               ; preds = %12
  %19 = sext i32 %4 to i64
  %20 = shl nsw i64 %19, 2
  br label %21

21:                                               ; preds = %37, %18
  %22 = phi ptr [ %16, %18 ], [ %38, %37 ]
  %23 = getelementptr inbounds i8, ptr %22, i64 52
  %24 = load i8, ptr %23, align 4, !tbaa !14, !range !17, !noundef !18
  %25 = icmp eq i8 %24, %14
  %26 = and i1 %13, %25
  br i1 %26, label %27, label %36

27:                                               ; preds = %21
  %28 = getelementptr inbounds i8, ptr %22, i64 56
  %29 = load i32, ptr %28, align 8, !tbaa !19
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
  %41 = tail call noalias dereferenceable_or_null(65616) ptr @calloc(i64 noundef 1, i64 noundef 65616) #22
  %42 = icmp eq ptr %41, null
  br i1 %42, label %60, label %43

43:                                               ; preds = %40
  %44 = add nsw i32 %4, 1
  %45 = sext i32 %44 to i64
  %46 = shl nsw i64 %45, 2
  %47 = tail call noalias ptr @malloc(i64 noundef %46) #23
  %48 = getelementptr inbounds i8, ptr %41, i64 64
  store ptr %47, ptr %48, align 8, !tbaa !20
  %49 = getelementptr inbounds i8, ptr %41, i64 8
  %50 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %49, ptr noundef null) #21
  %51 = getelementptr inbounds i8, ptr %41, i64 52
  store i8 %14, ptr %51, align 4, !tbaa !14
  %52 = load ptr, ptr %48, align 8, !tbaa !20
  %53 = icmp eq ptr %52, null
  br i1 %53, label %58, label %54

54:                                               ; preds = %43
  %55 = sext i32 %4 to i64
  %56 = shl nsw i64 %55, 2
  tail call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 4 %52, ptr readonly align 4 %3, i64 %56, i1 false)
  %57 = getelementptr inbounds i8, ptr %41, i64 56
  store i32 %4, ptr %57, align 8, !tbaa !19
  br label %58

58:                                               ; preds = %54, %43
  %59 = load ptr, ptr @pools, align 8, !tbaa !10
  store ptr %59, ptr %41, align 8, !tbaa !23
  store ptr %41, ptr @pools, align 8, !tbaa !10
  br label %60

60:                                               ; preds = %31, %36, %40, %58
  %61 = phi ptr [ %41, %58 ], [ null, %40 ], [ %22, %36 ], [ %22, %31 ]
  %62 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @pools_lock) #21
  %63 = icmp eq ptr %7, null
  %64 = icmp ne ptr %61, null
  %65 = and i1 %63, %64
  br i1 %65, label %66, label %72

66:                                               ; preds = %60
  %67 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #22
  %68 = icmp eq ptr %67, null
  br i1 %68, label %80, label %69

69:                                               ; preds = %66
  %70 = load i32, ptr @state_key, align 4, !tbaa !13
  %71 = tail call i32 @pthread_setspecific(i32 noundef %70, ptr noundef nonnull %67) #21
  br label %72

72:                                               ; preds = %69, %60
  %73 = phi ptr [ %67, %69 ], [ %7, %60 ]
  %74 = icmp ne ptr %73, null
  %75 = and i1 %64, %74
  br i1 %75, label %76, label %80

76:                                               ; preds = %72
  store ptr %61, ptr %73, align 8, !tbaa !24
  %77 = tail call i32 @llvm.smin.i32(i32 %0, i32 8192)
  %78 = getelementptr inbounds i8, ptr %73, i64 8
  store i32 %77, ptr %78, align 8, !tbaa !26
  %79 = getelementptr inbounds i8, ptr %73, i64 12
  store i32 %1, ptr %79, align 4, !tbaa !27
  br label %80

80:                                               ; preds = %66, %76, %72, %9
  %81 = phi i32 [ 0, %9 ], [ 0, %76 ], [ 12, %72 ], [ 12, %66 ]
  ret i32 %81
}

; Function Attrs: mustprogress nofree norecurse nounwind optsize willreturn memory(readwrite, argmem: none, inaccessiblemem: none)
define internal void @add_always(i32 noundef %0) #3 {
  %2 = atomicrmw add ptr @always_users, i32 %0 seq_cst, align 4
  ret void
}

; Function Attrs: nounwind optsize
define internal i32 @launch(ptr noundef %0, ptr noundef %1, i32 noundef %2) #2 {
  %4 = alloca %struct.timespec, align 8
  %5 = alloca %struct.Region, align 64
  %6 = load i32, ptr @state_key, align 4, !tbaa !13
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #21
  %8 = icmp eq ptr %7, null
  br i1 %8, label %9, label %12

9:                                                ; preds = %3
  %10 = load ptr, ptr @tvm, align 8, !tbaa !28
  %11 = tail call i32 %10(ptr noundef %0, ptr noundef %1, i32 noundef %2) #21
  br label %329

12:                                               ; preds = %3
  %13 = icmp sgt i32 %2, 0
  br i1 %13, label %17, label %14

14:                                               ; preds = %12
  %15 = getelementptr inbounds i8, ptr %7, i64 8
  %16 = load i32, ptr %15, align 8, !tbaa !26
  br label %17

17:                                               ; preds = %12, %14
  %18 = phi i32 [ %16, %14 ], [ %2, %12 ]
  call void @llvm.lifetime.start.p0(i64 104, ptr nonnull %5) #17
  store ptr %5, ptr %5, align 64, !tbaa !30
  %19 = getelementptr inbounds i8, ptr %5, i64 8
  store i32 %18, ptr %19, align 8, !tbaa !32
  %20 = getelementptr inbounds i8, ptr %5, i64 16
  store ptr %0, ptr %20, align 16, !tbaa !33
  %21 = getelementptr inbounds i8, ptr %5, i64 24
  store ptr %1, ptr %21, align 8, !tbaa !35
  %22 = getelementptr inbounds i8, ptr %5, i64 32
  %23 = getelementptr inbounds i8, ptr %5, i64 36
  %24 = getelementptr inbounds i8, ptr %5, i64 40
  %25 = getelementptr inbounds i8, ptr %5, i64 48
  %26 = getelementptr inbounds i8, ptr %5, i64 56
  %27 = getelementptr inbounds i8, ptr %5, i64 60
  %28 = getelementptr inbounds i8, ptr %5, i64 64
  %29 = getelementptr inbounds i8, ptr %5, i64 88
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %29, i8 0, i64 16, i1 false)
  %30 = getelementptr inbounds i8, ptr %7, i64 12
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 32 dereferenceable(25) %22, i8 0, i64 25, i1 false)
  %31 = getelementptr inbounds i8, ptr %5, i64 72
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(12) %31, i8 0, i64 12, i1 false)
  %32 = load i32, ptr %30, align 4, !tbaa !27
  store i32 %32, ptr %23, align 4, !tbaa !36
  %33 = load ptr, ptr %7, align 8, !tbaa !24
  store ptr %33, ptr %24, align 8, !tbaa !37
  %34 = icmp sgt i32 %18, 1
  %35 = add nuw nsw i32 %18, 63
  %36 = lshr i32 %35, 6
  %37 = select i1 %34, i32 %36, i32 0
  store i32 %37, ptr %27, align 4, !tbaa !38
  store ptr %29, ptr %28, align 64, !tbaa !39
  %38 = icmp ugt i32 %37, 2
  br i1 %38, label %39, label %46

39:                                               ; preds = %17
  %40 = zext nneg i32 %37 to i64
  %41 = call noalias ptr @calloc(i64 noundef %40, i64 noundef 8) #22
  store ptr %41, ptr %28, align 64, !tbaa !39
  %42 = icmp eq ptr %41, null
  br i1 %42, label %43, label %46

43:                                               ; preds = %39
  %44 = load ptr, ptr @tvm, align 8, !tbaa !28
  %45 = call i32 %44(ptr noundef %0, ptr noundef %1, i32 noundef %18) #21
  br label %327

46:                                               ; preds = %39, %17
  %47 = getelementptr inbounds i8, ptr %7, i64 16
  %48 = load i32, ptr %47, align 8, !tbaa !40
  %49 = icmp eq i32 %48, 0
  br i1 %49, label %52, label %50

50:                                               ; preds = %46
  %51 = add nsw i32 %48, 1
  store i32 %51, ptr %47, align 8, !tbaa !40
  br label %58

52:                                               ; preds = %46
  %53 = getelementptr inbounds i8, ptr %7, i64 8
  %54 = load i32, ptr %53, align 8, !tbaa !26
  %55 = add nsw i32 %54, -1
  %56 = icmp sgt i32 %54, 1
  %57 = select i1 %34, i1 %56, i1 false
  store i32 1, ptr %47, align 8, !tbaa !40
  br i1 %57, label %60, label %58

58:                                               ; preds = %52, %50
  %59 = phi i32 [ 0, %50 ], [ %55, %52 ]
  br i1 %34, label %147, label %159

60:                                               ; preds = %52
  %61 = add nsw i32 %18, -1
  store i32 %61, ptr %22, align 32, !tbaa !41
  %62 = call i32 @llvm.umin.i32(i32 %61, i32 %55)
  %63 = getelementptr inbounds i8, ptr %33, i64 48
  %64 = load atomic i32, ptr %63 acquire, align 8
  %65 = icmp slt i32 %64, %62
  br i1 %65, label %66, label %68

66:                                               ; preds = %60
  call fastcc void @grow(ptr noundef nonnull %33, i32 noundef %62) #24
  %67 = load atomic i32, ptr %63 seq_cst, align 8
  br label %68

68:                                               ; preds = %66, %60
  %69 = phi i32 [ %67, %66 ], [ %64, %60 ]
  %70 = getelementptr inbounds i8, ptr %33, i64 80
  %71 = ptrtoint ptr %5 to i64
  %72 = sext i32 %69 to i64
  %73 = zext nneg i32 %18 to i64
  br label %74

74:                                               ; preds = %137, %68
  %75 = phi i64 [ 1, %68 ], [ %140, %137 ]
  %76 = phi i32 [ %61, %68 ], [ %138, %137 ]
  %77 = phi i32 [ 0, %68 ], [ %139, %137 ]
  %78 = icmp sge i32 %77, %55
  %79 = icmp sgt i64 %75, %72
  %80 = select i1 %78, i1 true, i1 %79
  br i1 %80, label %98, label %81

81:                                               ; preds = %74
  %82 = add nsw i64 %75, -1
  %83 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %82
  %84 = load ptr, ptr %83, align 8, !tbaa !10
  %85 = load atomic i64, ptr %84 monotonic, align 128
  %86 = shl i64 %75, 48
  %87 = or i64 %86, %71
  br label %88

88:                                               ; preds = %91, %81
  %89 = phi i64 [ %85, %81 ], [ %94, %91 ]
  %90 = icmp ult i64 %89, 2
  br i1 %90, label %91, label %98

91:                                               ; preds = %88
  %92 = cmpxchg weak ptr %84, i64 %89, i64 %87 seq_cst seq_cst, align 128
  %93 = extractvalue { i64, i1 } %92, 1
  %94 = extractvalue { i64, i1 } %92, 0
  br i1 %93, label %95, label %88, !llvm.loop !42

95:                                               ; preds = %91
  %96 = icmp eq i64 %89, 1
  br i1 %96, label %97, label %125

97:                                               ; preds = %95
  call fastcc void @wake(ptr noundef nonnull %84) #24
  br label %125

98:                                               ; preds = %88, %74
  %99 = icmp sge i32 %76, %69
  %100 = select i1 %78, i1 true, i1 %99
  br i1 %100, label %128, label %101

101:                                              ; preds = %98
  %102 = shl i64 %75, 48
  %103 = or i64 %102, %71
  %104 = sext i32 %76 to i64
  br label %105

105:                                              ; preds = %123, %101
  %106 = phi i64 [ %104, %101 ], [ %107, %123 ]
  %107 = add nsw i64 %106, 1
  %108 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %106
  %109 = load ptr, ptr %108, align 8, !tbaa !10
  %110 = load atomic i64, ptr %109 monotonic, align 128
  br label %111

111:                                              ; preds = %114, %105
  %112 = phi i64 [ %110, %105 ], [ %117, %114 ]
  %113 = icmp ult i64 %112, 2
  br i1 %113, label %114, label %123

114:                                              ; preds = %111
  %115 = cmpxchg weak ptr %109, i64 %112, i64 %103 seq_cst seq_cst, align 128
  %116 = extractvalue { i64, i1 } %115, 1
  %117 = extractvalue { i64, i1 } %115, 0
  br i1 %116, label %118, label %111, !llvm.loop !42

118:                                              ; preds = %114
  %119 = icmp eq i64 %112, 1
  br i1 %119, label %120, label %121

120:                                              ; preds = %118
  call fastcc void @wake(ptr noundef nonnull %109) #24
  br label %121

121:                                              ; preds = %120, %118
  %122 = trunc nsw i64 %107 to i32
  br label %125

123:                                              ; preds = %111
  %124 = icmp eq i64 %107, %72
  br i1 %124, label %128, label %105, !llvm.loop !43

125:                                              ; preds = %121, %97, %95
  %126 = phi i32 [ %122, %121 ], [ %76, %97 ], [ %76, %95 ]
  %127 = add nsw i32 %77, 1
  br label %137

128:                                              ; preds = %123, %98
  %129 = phi i32 [ %76, %98 ], [ %69, %123 ]
  %130 = load ptr, ptr %28, align 64, !tbaa !39
  %131 = lshr i64 %75, 6
  %132 = and i64 %131, 67108863
  %133 = getelementptr inbounds i64, ptr %130, i64 %132
  %134 = and i64 %75, 63
  %135 = shl nuw i64 1, %134
  %136 = atomicrmw or ptr %133, i64 %135 seq_cst, align 8
  br label %137

137:                                              ; preds = %128, %125
  %138 = phi i32 [ %126, %125 ], [ %129, %128 ]
  %139 = phi i32 [ %127, %125 ], [ %77, %128 ]
  %140 = add nuw nsw i64 %75, 1
  %141 = icmp eq i64 %140, %73
  br i1 %141, label %142, label %74, !llvm.loop !44

142:                                              ; preds = %137
  %143 = icmp eq i32 %61, %139
  br i1 %143, label %159, label %144

144:                                              ; preds = %142
  %145 = sub nsw i32 %61, %139
  %146 = atomicrmw sub ptr %22, i32 %145 seq_cst, align 32
  br label %159

147:                                              ; preds = %58, %147
  %148 = phi i32 [ %157, %147 ], [ 1, %58 ]
  %149 = load ptr, ptr %28, align 64, !tbaa !39
  %150 = lshr i32 %148, 6
  %151 = zext nneg i32 %150 to i64
  %152 = getelementptr inbounds i64, ptr %149, i64 %151
  %153 = and i32 %148, 63
  %154 = zext nneg i32 %153 to i64
  %155 = shl nuw i64 1, %154
  %156 = atomicrmw or ptr %152, i64 %155 seq_cst, align 8
  %157 = add nuw nsw i32 %148, 1
  %158 = icmp eq i32 %157, %18
  br i1 %158, label %159, label %147, !llvm.loop !45

159:                                              ; preds = %147, %144, %142, %58
  %160 = phi i1 [ false, %58 ], [ true, %142 ], [ true, %144 ], [ false, %147 ]
  %161 = phi i32 [ %59, %58 ], [ %55, %142 ], [ %55, %144 ], [ %59, %147 ]
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef 0) #25
  %162 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #25
  %163 = icmp sgt i32 %162, -1
  br i1 %163, label %164, label %166

164:                                              ; preds = %159
  %165 = ptrtoint ptr %5 to i64
  br label %167

166:                                              ; preds = %227, %159
  br i1 %160, label %230, label %261

167:                                              ; preds = %227, %164
  %168 = phi i32 [ %162, %164 ], [ %228, %227 ]
  br i1 %160, label %169, label %226

169:                                              ; preds = %167
  %170 = load atomic i32, ptr %22 seq_cst, align 32
  %171 = icmp ult i32 %170, %161
  br i1 %171, label %172, label %226

172:                                              ; preds = %169
  %173 = load i32, ptr %27, align 4, !tbaa !38
  %174 = icmp sgt i32 %173, 0
  br i1 %174, label %175, label %226

175:                                              ; preds = %172
  %176 = load ptr, ptr %28, align 64, !tbaa !39
  %177 = zext nneg i32 %173 to i64
  %178 = load atomic i64, ptr %176 monotonic, align 8
  %179 = icmp eq i64 %178, 0
  br i1 %179, label %180, label %190

180:                                              ; preds = %175, %184
  %181 = phi i64 [ %182, %184 ], [ 0, %175 ]
  %182 = add nuw nsw i64 %181, 1
  %183 = icmp eq i64 %182, %177
  br i1 %183, label %226, label %184, !llvm.loop !46

184:                                              ; preds = %180
  %185 = getelementptr inbounds i64, ptr %176, i64 %182
  %186 = load atomic i64, ptr %185 monotonic, align 8
  %187 = icmp eq i64 %186, 0
  br i1 %187, label %180, label %188, !llvm.loop !46

188:                                              ; preds = %184
  %189 = icmp ult i64 %182, %177
  br i1 %189, label %190, label %226

190:                                              ; preds = %188, %175
  %191 = atomicrmw add ptr %22, i32 1 seq_cst, align 32
  %192 = load ptr, ptr %24, align 8, !tbaa !37
  %193 = getelementptr inbounds i8, ptr %192, i64 48
  %194 = load atomic i32, ptr %193 acquire, align 8
  %195 = icmp sgt i32 %194, 0
  br i1 %195, label %196, label %224

196:                                              ; preds = %190
  %197 = getelementptr inbounds i8, ptr %192, i64 80
  %198 = zext nneg i32 %168 to i64
  %199 = shl i64 %198, 48
  %200 = or i64 %199, %165
  %201 = zext nneg i32 %194 to i64
  br label %202

202:                                              ; preds = %218, %196
  %203 = phi i64 [ 0, %196 ], [ %219, %218 ]
  %204 = phi i1 [ true, %196 ], [ %220, %218 ]
  %205 = getelementptr inbounds [8192 x ptr], ptr %197, i64 0, i64 %203
  %206 = load ptr, ptr %205, align 8, !tbaa !10
  %207 = load atomic i64, ptr %206 monotonic, align 128
  br label %208

208:                                              ; preds = %211, %202
  %209 = phi i64 [ %207, %202 ], [ %214, %211 ]
  %210 = icmp ult i64 %209, 2
  br i1 %210, label %211, label %218

211:                                              ; preds = %208
  %212 = cmpxchg weak ptr %206, i64 %209, i64 %200 seq_cst seq_cst, align 128
  %213 = extractvalue { i64, i1 } %212, 1
  %214 = extractvalue { i64, i1 } %212, 0
  br i1 %213, label %215, label %208, !llvm.loop !42

215:                                              ; preds = %211
  %216 = icmp eq i64 %209, 1
  br i1 %216, label %217, label %222

217:                                              ; preds = %215
  call fastcc void @wake(ptr noundef nonnull %206) #24
  br i1 %204, label %227, label %224

218:                                              ; preds = %208
  %219 = add nuw nsw i64 %203, 1
  %220 = icmp ult i64 %219, %201
  %221 = icmp eq i64 %219, %201
  br i1 %221, label %222, label %202, !llvm.loop !47

222:                                              ; preds = %218, %215
  %223 = phi i1 [ %204, %215 ], [ %220, %218 ]
  br i1 %223, label %227, label %224

224:                                              ; preds = %222, %217, %190
  %225 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  br label %226

226:                                              ; preds = %180, %224, %188, %172, %169, %167
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %168) #25
  br label %227

227:                                              ; preds = %226, %222, %217
  %228 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #25
  %229 = icmp sgt i32 %228, -1
  br i1 %229, label %167, label %166, !llvm.loop !48

230:                                              ; preds = %166
  %231 = load atomic i32, ptr %22 acquire, align 32
  %232 = icmp eq i32 %231, 0
  br i1 %232, label %261, label %233

233:                                              ; preds = %230
  %234 = load ptr, ptr %24, align 8, !tbaa !37
  %235 = getelementptr inbounds i8, ptr %234, i64 48
  %236 = load atomic i32, ptr %235 seq_cst, align 8
  %237 = icmp sgt i32 %236, 0
  br i1 %237, label %238, label %261

238:                                              ; preds = %233
  %239 = ptrtoint ptr %5 to i64
  %240 = zext nneg i32 %236 to i64
  br label %241

241:                                              ; preds = %258, %238
  %242 = phi i64 [ 0, %238 ], [ %259, %258 ]
  %243 = load ptr, ptr %24, align 8, !tbaa !37
  %244 = getelementptr inbounds i8, ptr %243, i64 80
  %245 = getelementptr inbounds [8192 x ptr], ptr %244, i64 0, i64 %242
  %246 = load ptr, ptr %245, align 8, !tbaa !10
  %247 = load atomic i64, ptr %246 seq_cst, align 128
  %248 = and i64 %247, 281474976710655
  %249 = icmp eq i64 %248, %239
  br i1 %249, label %250, label %258

250:                                              ; preds = %241
  %251 = cmpxchg ptr %246, i64 %247, i64 0 seq_cst seq_cst, align 128
  %252 = extractvalue { i64, i1 } %251, 1
  br i1 %252, label %253, label %258

253:                                              ; preds = %250
  %254 = extractvalue { i64, i1 } %251, 0
  %255 = lshr i64 %254, 48
  %256 = trunc nuw nsw i64 %255 to i32
  %257 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %256) #25
  br label %258

258:                                              ; preds = %253, %250, %241
  %259 = add nuw nsw i64 %242, 1
  %260 = icmp eq i64 %259, %240
  br i1 %260, label %261, label %241, !llvm.loop !49

261:                                              ; preds = %258, %233, %230, %166
  %262 = load i32, ptr %23, align 4, !tbaa !36
  %263 = sext i32 %262 to i64
  %264 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %263
  %265 = load i64, ptr %264, align 8, !tbaa !50
  %266 = icmp eq i32 %262, 2
  %267 = icmp eq i32 %262, 1
  %268 = getelementptr inbounds i8, ptr %4, i64 8
  br label %269

269:                                              ; preds = %307, %261
  %270 = phi i64 [ 0, %261 ], [ %308, %307 ]
  %271 = phi i32 [ 0, %261 ], [ %309, %307 ]
  br label %272

272:                                              ; preds = %288, %269
  %273 = phi i32 [ %271, %269 ], [ %277, %288 ]
  %274 = load atomic i32, ptr %22 acquire, align 32
  switch i32 %274, label %275 [
    i32 0, label %310
    i32 -2147483648, label %310
  ]

275:                                              ; preds = %272
  br i1 %266, label %299, label %276

276:                                              ; preds = %275
  call void @llvm.x86.sse2.pause()
  %277 = add i32 %273, 1
  %278 = and i32 %277, 15
  %279 = icmp eq i32 %278, 0
  br i1 %279, label %280, label %288

280:                                              ; preds = %276
  br i1 %267, label %281, label %289

281:                                              ; preds = %280
  %282 = icmp ugt i32 %277, 1024
  br i1 %282, label %283, label %285

283:                                              ; preds = %281
  %284 = call i32 @sched_yield() #21
  br label %285

285:                                              ; preds = %283, %281
  %286 = load atomic i32, ptr @always_users monotonic, align 4
  %287 = icmp sgt i32 %286, 0
  br i1 %287, label %288, label %299

288:                                              ; preds = %285, %276
  br label %272, !llvm.loop !51

289:                                              ; preds = %280
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #17
  %290 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #21
  %291 = load i64, ptr %4, align 8, !tbaa !52
  %292 = mul nsw i64 %291, 1000000000
  %293 = load i64, ptr %268, align 8, !tbaa !54
  %294 = add nsw i64 %292, %293
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #17
  %295 = icmp eq i64 %270, 0
  %296 = add nsw i64 %294, %265
  %297 = select i1 %295, i64 %296, i64 %270
  %298 = icmp slt i64 %294, %297
  br i1 %298, label %307, label %299

299:                                              ; preds = %285, %275, %289
  %300 = phi i32 [ %277, %289 ], [ %271, %275 ], [ %277, %285 ]
  %301 = phi i64 [ %297, %289 ], [ %270, %275 ], [ %270, %285 ]
  %302 = atomicrmw or ptr %22, i32 -2147483648 seq_cst, align 8
  %303 = or i32 %302, -2147483648
  %304 = icmp eq i32 %303, -2147483648
  br i1 %304, label %307, label %305

305:                                              ; preds = %299
  %306 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %22, i32 noundef %303, i64 noundef 0) #25
  br label %307

307:                                              ; preds = %305, %299, %289
  %308 = phi i64 [ %297, %289 ], [ %301, %305 ], [ %301, %299 ]
  %309 = phi i32 [ %277, %289 ], [ %300, %305 ], [ %300, %299 ]
  br label %269, !llvm.loop !51

310:                                              ; preds = %272, %272
  %311 = load i32, ptr %47, align 8, !tbaa !40
  %312 = add nsw i32 %311, -1
  store i32 %312, ptr %47, align 8, !tbaa !40
  %313 = load ptr, ptr %28, align 64, !tbaa !39
  %314 = icmp eq ptr %313, %29
  br i1 %314, label %316, label %315

315:                                              ; preds = %310
  call void @free(ptr noundef %313) #21
  br label %316

316:                                              ; preds = %315, %310
  %317 = load atomic i8, ptr %26 seq_cst, align 8
  %318 = trunc i8 %317 to i1
  br i1 %318, label %319, label %327

319:                                              ; preds = %316
  %320 = load atomic i64, ptr %25 seq_cst, align 16
  %321 = icmp eq i64 %320, 0
  br i1 %321, label %327, label %322

322:                                              ; preds = %319
  %323 = inttoptr i64 %320 to ptr
  %324 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 32), align 8, !tbaa !55
  call void %324(ptr noundef nonnull %323) #21
  %325 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !56
  %326 = call i32 %325(ptr noundef nonnull %323) #21
  br label %327

327:                                              ; preds = %43, %316, %319, %322
  %328 = phi i32 [ %45, %43 ], [ 0, %316 ], [ -1, %322 ], [ -1, %319 ]
  call void @llvm.lifetime.end.p0(i64 104, ptr nonnull %5) #17
  br label %329

329:                                              ; preds = %327, %9
  %330 = phi i32 [ %328, %327 ], [ %11, %9 ]
  ret i32 %330
}

; Function Attrs: nounwind optsize
define internal i32 @barrier(i32 noundef %0, ptr noundef %1) #2 {
  %3 = alloca %struct.timespec, align 8
  %4 = load ptr, ptr %1, align 8, !tbaa !30
  %5 = icmp eq ptr %4, %1
  br i1 %5, label %9, label %6

6:                                                ; preds = %2
  %7 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 8), align 8, !tbaa !57
  %8 = tail call i32 %7(i32 noundef %0, ptr noundef nonnull %1) #21
  br label %58

9:                                                ; preds = %2
  %10 = getelementptr inbounds i8, ptr %1, i64 72
  %11 = load atomic i32, ptr %10 seq_cst, align 8
  %12 = getelementptr inbounds i8, ptr %1, i64 76
  %13 = atomicrmw add ptr %12, i32 1 seq_cst, align 4
  %14 = add nsw i32 %13, 1
  %15 = getelementptr inbounds i8, ptr %1, i64 8
  %16 = load i32, ptr %15, align 8, !tbaa !32
  %17 = icmp eq i32 %14, %16
  %18 = getelementptr inbounds i8, ptr %1, i64 80
  br i1 %17, label %22, label %19

19:                                               ; preds = %9
  %20 = getelementptr inbounds i8, ptr %1, i64 56
  %21 = getelementptr inbounds i8, ptr %3, i64 8
  br label %50

22:                                               ; preds = %9
  store atomic i32 0, ptr %12 seq_cst, align 4
  %23 = atomicrmw add ptr %10, i32 1 seq_cst, align 8
  %24 = load atomic i32, ptr %18 seq_cst, align 8
  %25 = icmp eq i32 %24, 0
  br i1 %25, label %58, label %26

26:                                               ; preds = %22
  %27 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %10, i32 noundef 129, i32 noundef 2147483647, ptr noundef null, ptr noundef null, i32 noundef 0) #21
  br label %58

28:                                               ; preds = %50, %35
  %29 = phi i32 [ %36, %35 ], [ %52, %50 ]
  %30 = load atomic i32, ptr %10 seq_cst, align 8
  %31 = icmp eq i32 %30, %11
  br i1 %31, label %32, label %58

32:                                               ; preds = %28
  %33 = load atomic i8, ptr %20 seq_cst, align 8
  %34 = trunc i8 %33 to i1
  br i1 %34, label %58, label %35

35:                                               ; preds = %32
  call void @llvm.x86.sse2.pause()
  %36 = add i32 %29, 1
  %37 = and i32 %36, 15
  %38 = icmp eq i32 %37, 0
  br i1 %38, label %39, label %28, !llvm.loop !58

39:                                               ; preds = %35
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #17
  %40 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #21
  %41 = load i64, ptr %3, align 8, !tbaa !52
  %42 = mul nsw i64 %41, 1000000000
  %43 = load i64, ptr %21, align 8, !tbaa !54
  %44 = add nsw i64 %42, %43
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #17
  %45 = icmp eq i64 %51, 0
  %46 = add nsw i64 %44, 50000
  %47 = select i1 %45, i64 %46, i64 %51
  %48 = icmp sgt i64 %51, %44
  %49 = select i1 %45, i1 true, i1 %48
  br i1 %49, label %57, label %53

50:                                               ; preds = %57, %19
  %51 = phi i64 [ 0, %19 ], [ %47, %57 ]
  %52 = phi i32 [ 0, %19 ], [ %36, %57 ]
  br label %28

53:                                               ; preds = %39
  call fastcc void @begin_all(ptr noundef nonnull %1) #24
  %54 = atomicrmw add ptr %18, i32 1 seq_cst, align 8
  %55 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %10, i32 noundef %11, i64 noundef 10000000) #25
  %56 = atomicrmw sub ptr %18, i32 1 seq_cst, align 8
  br label %57

57:                                               ; preds = %53, %39
  br label %50, !llvm.loop !58

58:                                               ; preds = %32, %28, %26, %22, %6
  %59 = phi i32 [ %8, %6 ], [ 0, %26 ], [ 0, %22 ], [ 0, %28 ], [ -1, %32 ]
  ret i32 %59
}

; Function Attrs: nounwind optsize
define internal i32 @number(ptr nocapture readnone %0, ptr nocapture readnone %1, i32 %2, ptr noundef %3) #2 {
  %5 = load i32, ptr @state_key, align 4, !tbaa !13
  %6 = tail call ptr @pthread_getspecific(i32 noundef %5) #21
  %7 = icmp eq ptr %6, null
  br i1 %7, label %8, label %12

8:                                                ; preds = %4
  %9 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 16), align 8, !tbaa !59
  %10 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 48), align 8, !tbaa !60
  %11 = tail call i32 %9(ptr noundef %10, ptr noundef null, i32 noundef 0, ptr noundef %3) #21
  br label %18

12:                                               ; preds = %4
  store i32 1, ptr %3, align 8, !tbaa !8
  %13 = getelementptr inbounds i8, ptr %3, i64 4
  store i32 0, ptr %13, align 4, !tbaa !9
  %14 = getelementptr inbounds i8, ptr %6, i64 8
  %15 = load i32, ptr %14, align 8, !tbaa !26
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

; Function Attrs: nounwind optsize
declare i32 @pthread_key_create(ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @free(ptr allocptr nocapture noundef) #6

; Function Attrs: optsize
declare i32 @__register_atfork(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #7

; Function Attrs: nounwind optsize
define internal void @forget_threads() #2 {
  %1 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @pools_lock, ptr noundef null) #21
  %2 = load ptr, ptr @pools, align 8, !tbaa !10
  %3 = icmp eq ptr %2, null
  br i1 %3, label %4, label %5

4:                                                ; preds = %5, %0
  ret void

5:                                                ; preds = %0, %5
  %6 = phi ptr [ %11, %5 ], [ %2, %0 ]
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %7, ptr noundef null) #21
  %9 = getelementptr inbounds i8, ptr %6, i64 48
  store atomic i32 0, ptr %9 seq_cst, align 8
  %10 = getelementptr inbounds i8, ptr %6, i64 72
  store ptr null, ptr %10, align 8, !tbaa !61
  %11 = load ptr, ptr %6, align 8, !tbaa !10
  %12 = icmp eq ptr %11, null
  br i1 %12, label %4, label %5, !llvm.loop !62
}

; Function Attrs: nounwind optsize
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare ptr @pthread_getspecific(i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_setspecific(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr #8

; Function Attrs: nounwind optsize
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @malloc(i64 noundef) local_unnamed_addr #9

; Function Attrs: nounwind optsize
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #10

; Function Attrs: nounwind optsize
define internal fastcc void @run_task(ptr noundef %0, i32 noundef %1) unnamed_addr #2 {
  %3 = alloca ptr, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = load ptr, ptr %4, align 8, !tbaa !33
  %6 = getelementptr inbounds i8, ptr %0, i64 24
  %7 = load ptr, ptr %6, align 8, !tbaa !35
  %8 = tail call i32 %5(i32 noundef %1, ptr noundef %0, ptr noundef %7) #21
  %9 = icmp eq i32 %8, 0
  br i1 %9, label %25, label %10

10:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #17
  store ptr null, ptr %3, align 8, !tbaa !10
  %11 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !63
  call void %11(ptr noundef nonnull %3) #21
  %12 = getelementptr inbounds i8, ptr %0, i64 56
  store atomic i8 1, ptr %12 seq_cst, align 8
  %13 = load ptr, ptr %3, align 8, !tbaa !10
  %14 = icmp eq ptr %13, null
  br i1 %14, label %24, label %15

15:                                               ; preds = %10
  %16 = getelementptr inbounds i8, ptr %0, i64 48
  %17 = ptrtoint ptr %13 to i64
  %18 = cmpxchg ptr %16, i64 0, i64 %17 seq_cst seq_cst, align 8
  %19 = extractvalue { i64, i1 } %18, 1
  br i1 %19, label %24, label %20

20:                                               ; preds = %15
  %21 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !56
  %22 = load ptr, ptr %3, align 8, !tbaa !10
  %23 = call i32 %21(ptr noundef %22) #21
  br label %24

24:                                               ; preds = %20, %15, %10
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #17
  br label %25

25:                                               ; preds = %2, %24
  ret void
}

; Function Attrs: nofree norecurse nounwind optsize memory(readwrite, inaccessiblemem: none)
define internal fastcc i32 @take_loose(ptr nocapture noundef readonly %0) unnamed_addr #11 {
  %2 = getelementptr inbounds i8, ptr %0, i64 60
  %3 = load i32, ptr %2, align 4, !tbaa !38
  %4 = icmp sgt i32 %3, 0
  br i1 %4, label %5, label %36

5:                                                ; preds = %1
  %6 = getelementptr inbounds i8, ptr %0, i64 64
  br label %7

7:                                                ; preds = %5, %25
  %8 = phi i64 [ 0, %5 ], [ %26, %25 ]
  %9 = load ptr, ptr %6, align 8, !tbaa !39
  %10 = getelementptr inbounds i64, ptr %9, i64 %8
  %11 = load atomic i64, ptr %10 monotonic, align 8
  br label %12

12:                                               ; preds = %15, %7
  %13 = phi i64 [ %11, %7 ], [ %24, %15 ]
  %14 = icmp eq i64 %13, 0
  br i1 %14, label %25, label %15

15:                                               ; preds = %12
  %16 = sub i64 0, %13
  %17 = and i64 %13, %16
  %18 = load ptr, ptr %6, align 8, !tbaa !39
  %19 = getelementptr inbounds i64, ptr %18, i64 %8
  %20 = xor i64 %17, -1
  %21 = atomicrmw and ptr %19, i64 %20 seq_cst, align 8
  %22 = and i64 %21, %17
  %23 = icmp eq i64 %22, 0
  %24 = and i64 %21, %20
  br i1 %23, label %12, label %30, !llvm.loop !64

25:                                               ; preds = %12
  %26 = add nuw nsw i64 %8, 1
  %27 = load i32, ptr %2, align 4, !tbaa !38
  %28 = sext i32 %27 to i64
  %29 = icmp slt i64 %26, %28
  br i1 %29, label %7, label %36, !llvm.loop !65

30:                                               ; preds = %15
  %31 = trunc nuw nsw i64 %8 to i32
  %32 = shl nsw i32 %31, 6
  %33 = tail call range(i64 0, 65) i64 @llvm.cttz.i64(i64 %13, i1 true)
  %34 = trunc nuw nsw i64 %33 to i32
  %35 = or disjoint i32 %32, %34
  br label %36

36:                                               ; preds = %25, %1, %30
  %37 = phi i32 [ %35, %30 ], [ -1, %1 ], [ -1, %25 ]
  ret i32 %37
}

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @grow(ptr noundef %0, i32 noundef %1) unnamed_addr #12 {
  %3 = getelementptr inbounds i8, ptr %0, i64 8
  %4 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %3) #21
  %5 = getelementptr inbounds i8, ptr %0, i64 48
  %6 = load atomic i32, ptr %5 seq_cst, align 8
  %7 = icmp slt i32 %6, %1
  br i1 %7, label %8, label %38

8:                                                ; preds = %2
  %9 = getelementptr inbounds i8, ptr %0, i64 80
  %10 = sext i32 %6 to i64
  br label %11

11:                                               ; preds = %8, %34
  %12 = phi i64 [ %10, %8 ], [ %35, %34 ]
  %13 = getelementptr inbounds [8192 x ptr], ptr %9, i64 0, i64 %12
  %14 = load ptr, ptr %13, align 8, !tbaa !10
  %15 = icmp eq ptr %14, null
  br i1 %15, label %18, label %16

16:                                               ; preds = %11
  %17 = trunc nsw i64 %12 to i32
  br label %25

18:                                               ; preds = %11
  %19 = tail call noalias align 128 dereferenceable_or_null(128) ptr @aligned_alloc(i64 noundef 128, i64 noundef 128) #26
  %20 = icmp eq ptr %19, null
  br i1 %20, label %38, label %21

21:                                               ; preds = %18
  %22 = getelementptr inbounds i8, ptr %19, i64 8
  store ptr %0, ptr %22, align 8, !tbaa !66
  %23 = getelementptr inbounds i8, ptr %19, i64 16
  %24 = trunc nsw i64 %12 to i32
  store i32 %24, ptr %23, align 16, !tbaa !68
  store ptr %19, ptr %13, align 8, !tbaa !10
  br label %25

25:                                               ; preds = %16, %21
  %26 = phi i32 [ %17, %16 ], [ %24, %21 ]
  %27 = phi ptr [ %14, %16 ], [ %19, %21 ]
  store i64 0, ptr %27, align 8, !tbaa !41
  %28 = load ptr, ptr %13, align 8, !tbaa !10
  %29 = getelementptr inbounds i8, ptr %28, i64 24
  store i32 -1, ptr %29, align 4, !tbaa !41
  %30 = load ptr, ptr %13, align 8, !tbaa !10
  %31 = getelementptr inbounds i8, ptr %30, i64 28
  store i8 0, ptr %31, align 1, !tbaa !41
  %32 = load ptr, ptr %13, align 8, !tbaa !10
  %33 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %0, i32 noundef %26, ptr noundef nonnull @run_worker, ptr noundef %32) #24
  br i1 %33, label %34, label %38

34:                                               ; preds = %25
  %35 = add nsw i64 %12, 1
  %36 = trunc i64 %35 to i32
  store atomic i32 %36, ptr %5 seq_cst, align 8
  %37 = icmp eq i32 %36, %1
  br i1 %37, label %38, label %11, !llvm.loop !69

38:                                               ; preds = %34, %25, %18, %2
  %39 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %3) #21
  ret void
}

; Function Attrs: mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized,aligned") allocsize(1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @aligned_alloc(i64 allocalign noundef, i64 noundef) local_unnamed_addr #13

; Function Attrs: cold noinline nounwind optsize
define internal fastcc zeroext i1 @start_thread(ptr nocapture noundef readonly %0, i32 noundef %1, ptr noundef %2, ptr noundef %3) unnamed_addr #12 {
  %5 = alloca %struct.cpu_set_t, align 8
  %6 = alloca %struct.__sigset_t, align 8
  %7 = alloca %struct.__sigset_t, align 8
  %8 = alloca %union.pthread_attr_t, align 8
  %9 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #17
  call fastcc void @cpus_of(ptr dead_on_unwind nonnull writable sret(%struct.cpu_set_t) align 8 %5, ptr noundef %0) #24
  %10 = getelementptr inbounds i8, ptr %0, i64 52
  %11 = load i8, ptr %10, align 4, !tbaa !14, !range !17, !noundef !18
  %12 = trunc nuw i8 %11 to i1
  %13 = icmp sgt i32 %1, -1
  %14 = and i1 %13, %12
  br i1 %14, label %15, label %35

15:                                               ; preds = %4
  %16 = add nuw nsw i32 %1, 1
  %17 = getelementptr inbounds i8, ptr %0, i64 56
  %18 = load i32, ptr %17, align 8, !tbaa !19
  %19 = icmp slt i32 %16, %18
  br i1 %19, label %20, label %35

20:                                               ; preds = %15
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %5, i8 0, i64 128, i1 false)
  %21 = getelementptr inbounds i8, ptr %0, i64 64
  %22 = load ptr, ptr %21, align 8, !tbaa !20
  %23 = zext nneg i32 %16 to i64
  %24 = getelementptr inbounds i32, ptr %22, i64 %23
  %25 = load i32, ptr %24, align 4, !tbaa !13
  %26 = icmp ult i32 %25, 1024
  br i1 %26, label %27, label %35

27:                                               ; preds = %20
  %28 = zext nneg i32 %25 to i64
  %29 = and i64 %28, 63
  %30 = shl nuw i64 1, %29
  %31 = lshr i64 %28, 6
  %32 = getelementptr inbounds i64, ptr %5, i64 %31
  %33 = load i64, ptr %32, align 8, !tbaa !50
  %34 = or i64 %33, %30
  store i64 %34, ptr %32, align 8, !tbaa !50
  br label %35

35:                                               ; preds = %27, %20, %15, %4
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %6) #17
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %7) #17
  %36 = call i32 @sigfillset(ptr noundef nonnull %6) #21
  br label %44

37:                                               ; preds = %44
  call void @llvm.lifetime.start.p0(i64 56, ptr nonnull %8) #17
  %38 = call i32 @pthread_attr_init(ptr noundef nonnull %8) #21
  %39 = call i32 @pthread_attr_setdetachstate(ptr noundef nonnull %8, i32 noundef 1) #21
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #17
  %40 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %6, ptr noundef nonnull %7) #21
  %41 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #21
  %42 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #21
  %43 = icmp eq i32 %42, 22
  br i1 %43, label %51, label %55

44:                                               ; preds = %35, %44
  %45 = phi i64 [ 0, %35 ], [ %49, %44 ]
  %46 = getelementptr inbounds [6 x i32], ptr @__const.start_thread.own, i64 0, i64 %45
  %47 = load i32, ptr %46, align 4, !tbaa !13
  %48 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef %47) #21
  %49 = add nuw nsw i64 %45, 1
  %50 = icmp eq i64 %49, 6
  br i1 %50, label %37, label %44, !llvm.loop !70

51:                                               ; preds = %37
  %52 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %5) #21
  %53 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #21
  %54 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #21
  br label %55

55:                                               ; preds = %51, %37
  %56 = phi i32 [ %54, %51 ], [ %42, %37 ]
  %57 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %7, ptr noundef null) #21
  %58 = call i32 @pthread_attr_destroy(ptr noundef nonnull %8) #21
  %59 = icmp eq i32 %56, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #17
  call void @llvm.lifetime.end.p0(i64 56, ptr nonnull %8) #17
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %7) #17
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %6) #17
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #17
  ret i1 %59
}

; Function Attrs: noreturn nounwind optsize
define internal noalias noundef nonnull ptr @run_worker(ptr noundef %0) #14 {
  %2 = alloca %struct.timespec, align 8
  %3 = tail call i64 (i64, ...) @syscall(i64 noundef 186) #21
  %4 = trunc i64 %3 to i32
  %5 = getelementptr inbounds i8, ptr %0, i64 20
  store i32 %4, ptr %5, align 4, !tbaa !71
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = load ptr, ptr %6, align 8, !tbaa !66
  tail call fastcc void @become_helper(ptr noundef %7, ptr noundef nonnull @.str) #25
  %8 = getelementptr inbounds i8, ptr %2, i64 8
  %9 = getelementptr inbounds i8, ptr %0, i64 24
  br label %10

10:                                               ; preds = %47, %1
  %11 = phi i32 [ 0, %1 ], [ %48, %47 ]
  %12 = phi i64 [ 0, %1 ], [ %49, %47 ]
  %13 = phi i64 [ 100000, %1 ], [ %50, %47 ]
  %14 = load atomic i64, ptr %0 acquire, align 128
  %15 = icmp ugt i64 %14, 2
  br i1 %15, label %16, label %41

16:                                               ; preds = %10
  %17 = cmpxchg ptr %0, i64 %14, i64 2 seq_cst seq_cst, align 128
  %18 = extractvalue { i64, i1 } %17, 1
  br i1 %18, label %19, label %47

19:                                               ; preds = %16
  %20 = and i64 %14, 281474976710655
  %21 = inttoptr i64 %20 to ptr
  %22 = getelementptr inbounds i8, ptr %21, i64 36
  %23 = load i32, ptr %22, align 4, !tbaa !36
  %24 = sext i32 %23 to i64
  %25 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %24
  %26 = load i64, ptr %25, align 8, !tbaa !50
  %27 = lshr i64 %14, 48
  %28 = trunc nuw nsw i64 %27 to i32
  call fastcc void @run_task(ptr noundef %21, i32 noundef %28) #25
  %29 = call fastcc i32 @take_loose(ptr noundef %21) #25
  %30 = icmp sgt i32 %29, -1
  br i1 %30, label %37, label %31

31:                                               ; preds = %37, %19
  store atomic i64 0, ptr %0 release, align 128
  %32 = getelementptr inbounds i8, ptr %21, i64 32
  %33 = atomicrmw sub ptr %32, i32 1 seq_cst, align 8
  %34 = icmp eq i32 %33, -2147483647
  br i1 %34, label %35, label %47

35:                                               ; preds = %31
  %36 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %32, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #21
  br label %47

37:                                               ; preds = %19, %37
  %38 = phi i32 [ %39, %37 ], [ %29, %19 ]
  call fastcc void @run_task(ptr noundef %21, i32 noundef %38) #25
  %39 = call fastcc i32 @take_loose(ptr noundef %21) #25
  %40 = icmp sgt i32 %39, -1
  br i1 %40, label %37, label %31, !llvm.loop !72

41:                                               ; preds = %10
  %42 = icmp eq i64 %13, 0
  br i1 %42, label %70, label %43

43:                                               ; preds = %41
  call void @llvm.x86.sse2.pause()
  %44 = add i32 %11, 1
  %45 = and i32 %44, 15
  %46 = icmp eq i32 %45, 0
  br i1 %46, label %51, label %47

47:                                               ; preds = %43, %57, %35, %31, %82, %60, %70, %16
  %48 = phi i32 [ %11, %16 ], [ %44, %60 ], [ 0, %82 ], [ %72, %70 ], [ 0, %31 ], [ 0, %35 ], [ %44, %57 ], [ %44, %43 ]
  %49 = phi i64 [ %12, %16 ], [ %68, %60 ], [ 0, %82 ], [ %71, %70 ], [ 0, %31 ], [ 0, %35 ], [ %12, %57 ], [ %12, %43 ]
  %50 = phi i64 [ %13, %16 ], [ %13, %60 ], [ %13, %82 ], [ %13, %70 ], [ %26, %31 ], [ %26, %35 ], [ 9223372036854775807, %57 ], [ %13, %43 ]
  br label %10

51:                                               ; preds = %43
  %52 = icmp eq i64 %13, 9223372036854775807
  br i1 %52, label %53, label %60

53:                                               ; preds = %51
  %54 = icmp ugt i32 %44, 1024
  br i1 %54, label %55, label %57

55:                                               ; preds = %53
  %56 = call i32 @sched_yield() #21
  br label %57

57:                                               ; preds = %55, %53
  %58 = load atomic i32, ptr @always_users monotonic, align 4
  %59 = icmp sgt i32 %58, 0
  br i1 %59, label %47, label %70

60:                                               ; preds = %51
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #17
  %61 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #21
  %62 = load i64, ptr %2, align 8, !tbaa !52
  %63 = mul nsw i64 %62, 1000000000
  %64 = load i64, ptr %8, align 8, !tbaa !54
  %65 = add nsw i64 %63, %64
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #17
  %66 = icmp eq i64 %12, 0
  %67 = add nsw i64 %65, %13
  %68 = select i1 %66, i64 %67, i64 %12
  %69 = icmp slt i64 %65, %68
  br i1 %69, label %47, label %70

70:                                               ; preds = %41, %57, %60
  %71 = phi i64 [ %68, %60 ], [ %12, %57 ], [ %12, %41 ]
  %72 = phi i32 [ %44, %60 ], [ %44, %57 ], [ %11, %41 ]
  call fastcc void @run_anywhere(ptr noundef nonnull %0) #25
  store atomic i32 -1, ptr %9 seq_cst, align 8
  %73 = cmpxchg ptr %0, i64 %14, i64 1 seq_cst seq_cst, align 128
  %74 = extractvalue { i64, i1 } %73, 1
  br i1 %74, label %75, label %47

75:                                               ; preds = %70
  %76 = load atomic i64, ptr %0 seq_cst, align 128
  %77 = icmp eq i64 %76, 1
  br i1 %77, label %78, label %82

78:                                               ; preds = %75, %78
  %79 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %0, i32 noundef 1, i64 noundef 0) #25
  %80 = load atomic i64, ptr %0 seq_cst, align 128
  %81 = icmp eq i64 %80, 1
  br i1 %81, label %78, label %82, !llvm.loop !73

82:                                               ; preds = %78, %75
  call fastcc void @run_anywhere(ptr noundef nonnull %0) #25
  %83 = call i32 @sched_getcpu() #21
  store atomic i32 %83, ptr %9 seq_cst, align 8
  br label %47
}

; Function Attrs: cold nofree noinline norecurse nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none)
define internal fastcc void @cpus_of(ptr dead_on_unwind noalias nocapture writable sret(%struct.cpu_set_t) align 8 %0, ptr nocapture noundef readonly %1) unnamed_addr #15 {
  tail call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %0, i8 0, i64 128, i1 false)
  %3 = getelementptr inbounds i8, ptr %1, i64 56
  %4 = load i32, ptr %3, align 8, !tbaa !19
  %5 = icmp sgt i32 %4, 0
  br i1 %5, label %6, label %10

6:                                                ; preds = %2
  %7 = getelementptr inbounds i8, ptr %1, i64 64
  %8 = load ptr, ptr %7, align 8, !tbaa !20
  %9 = zext nneg i32 %4 to i64
  br label %11

10:                                               ; preds = %24, %2
  ret void

11:                                               ; preds = %6, %24
  %12 = phi i64 [ 0, %6 ], [ %25, %24 ]
  %13 = getelementptr inbounds i32, ptr %8, i64 %12
  %14 = load i32, ptr %13, align 4, !tbaa !13
  %15 = icmp ult i32 %14, 1024
  br i1 %15, label %16, label %24

16:                                               ; preds = %11
  %17 = zext nneg i32 %14 to i64
  %18 = and i64 %17, 63
  %19 = shl nuw i64 1, %18
  %20 = lshr i64 %17, 6
  %21 = getelementptr inbounds i64, ptr %0, i64 %20
  %22 = load i64, ptr %21, align 8, !tbaa !50
  %23 = or i64 %22, %19
  store i64 %23, ptr %21, align 8, !tbaa !50
  br label %24

24:                                               ; preds = %11, %16
  %25 = add nuw nsw i64 %12, 1
  %26 = icmp eq i64 %25, %9
  br i1 %26, label %10, label %11, !llvm.loop !74
}

; Function Attrs: nounwind optsize
declare i32 @sigfillset(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @sigdelset(ptr noundef, i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_attr_init(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_attr_setdetachstate(ptr noundef, i32 noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_sigmask(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_attr_setaffinity_np(ptr noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_attr_destroy(ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i64 @syscall(i64 noundef, ...) local_unnamed_addr #5

; Function Attrs: nounwind optsize
define internal fastcc void @become_helper(ptr noundef %0, ptr noundef %1) unnamed_addr #2 {
  %3 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #22
  %4 = icmp eq ptr %3, null
  br i1 %4, label %10, label %5

5:                                                ; preds = %2
  store ptr %0, ptr %3, align 8, !tbaa !24
  %6 = getelementptr inbounds i8, ptr %3, i64 8
  store i32 1, ptr %6, align 8, !tbaa !26
  %7 = getelementptr inbounds i8, ptr %3, i64 12
  store i32 2, ptr %7, align 4, !tbaa !27
  %8 = load i32, ptr @state_key, align 4, !tbaa !13
  %9 = tail call i32 @pthread_setspecific(i32 noundef %8, ptr noundef nonnull %3) #21
  br label %10

10:                                               ; preds = %5, %2
  %11 = tail call i64 @pthread_self() #27
  %12 = tail call i32 @pthread_setname_np(i64 noundef %11, ptr noundef %1) #21
  ret void
}

; Function Attrs: nounwind optsize
define internal fastcc void @run_anywhere(ptr nocapture noundef %0) unnamed_addr #2 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = getelementptr inbounds i8, ptr %0, i64 28
  %4 = atomicrmw xchg ptr %3, i8 0 seq_cst, align 4
  %5 = trunc i8 %4 to i1
  br i1 %5, label %6, label %10

6:                                                ; preds = %1
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #17
  %7 = getelementptr inbounds i8, ptr %0, i64 8
  %8 = load ptr, ptr %7, align 8, !tbaa !66
  call fastcc void @cpus_of(ptr dead_on_unwind nonnull writable sret(%struct.cpu_set_t) align 8 %2, ptr noundef %8) #24
  %9 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %2) #21
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #17
  br label %10

10:                                               ; preds = %1, %6
  ret void
}

; Function Attrs: nounwind optsize
define internal fastcc zeroext i1 @futex_wait(ptr noundef %0, i32 noundef %1, i64 noundef %2) unnamed_addr #2 {
  %4 = alloca %struct.timespec, align 8
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #17
  %5 = udiv i64 %2, 1000000000
  store i64 %5, ptr %4, align 8, !tbaa !52
  %6 = getelementptr inbounds i8, ptr %4, i64 8
  %7 = urem i64 %2, 1000000000
  store i64 %7, ptr %6, align 8, !tbaa !54
  %8 = icmp eq i64 %2, 0
  %9 = select i1 %8, ptr null, ptr %4
  %10 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef %0, i32 noundef 128, i32 noundef %1, ptr noundef %9, ptr noundef null, i32 noundef 0) #21
  %11 = icmp eq i64 %10, 0
  br i1 %11, label %16, label %12

12:                                               ; preds = %3
  %13 = tail call ptr @__errno_location() #27
  %14 = load i32, ptr %13, align 4, !tbaa !13
  %15 = icmp ne i32 %14, 110
  br label %16

16:                                               ; preds = %12, %3
  %17 = phi i1 [ true, %3 ], [ %15, %12 ]
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #17
  ret i1 %17
}

; Function Attrs: nounwind optsize
declare i32 @sched_getcpu() local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @pthread_setname_np(i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare i64 @pthread_self() local_unnamed_addr #16

; Function Attrs: nounwind
declare void @llvm.x86.sse2.pause() #17

; Function Attrs: nounwind optsize
declare i32 @sched_yield() local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @sched_setaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare ptr @__errno_location() local_unnamed_addr #16

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @wake(ptr noundef %0) unnamed_addr #12 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = alloca %struct.cpu_set_t, align 8
  %4 = alloca %struct.cpu_set_t, align 8
  %5 = getelementptr inbounds i8, ptr %0, i64 8
  %6 = load ptr, ptr %5, align 8, !tbaa !66
  %7 = getelementptr inbounds i8, ptr %6, i64 48
  %8 = load atomic i32, ptr %7 seq_cst, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #17
  call fastcc void @cpus_of(ptr dead_on_unwind nonnull writable sret(%struct.cpu_set_t) align 8 %2, ptr noundef %6) #24
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #17
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #17
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %4, ptr noundef nonnull align 8 dereferenceable(128) %2, i64 128, i1 false), !tbaa.struct !75
  %9 = tail call i32 @sched_getcpu() #21
  %10 = icmp ult i32 %9, 1024
  br i1 %10, label %11, label %20

11:                                               ; preds = %1
  %12 = zext nneg i32 %9 to i64
  %13 = and i64 %12, 63
  %14 = shl nuw i64 1, %13
  %15 = xor i64 %14, -1
  %16 = lshr i64 %12, 6
  %17 = getelementptr inbounds i64, ptr %4, i64 %16
  %18 = load i64, ptr %17, align 8, !tbaa !50
  %19 = and i64 %18, %15
  store i64 %19, ptr %17, align 8, !tbaa !50
  br label %20

20:                                               ; preds = %11, %1
  %21 = icmp sgt i32 %8, 0
  br i1 %21, label %22, label %25

22:                                               ; preds = %20
  %23 = getelementptr inbounds i8, ptr %6, i64 80
  %24 = zext nneg i32 %8 to i64
  br label %29

25:                                               ; preds = %45, %20
  %26 = getelementptr inbounds i8, ptr %6, i64 52
  %27 = load i8, ptr %26, align 4, !tbaa !14, !range !17, !noundef !18
  %28 = trunc nuw i8 %27 to i1
  br i1 %28, label %65, label %48

29:                                               ; preds = %22, %45
  %30 = phi i64 [ 0, %22 ], [ %46, %45 ]
  %31 = getelementptr inbounds [8192 x ptr], ptr %23, i64 0, i64 %30
  %32 = load ptr, ptr %31, align 8, !tbaa !10
  %33 = getelementptr inbounds i8, ptr %32, i64 24
  %34 = load atomic i32, ptr %33 seq_cst, align 8
  %35 = icmp ult i32 %34, 1024
  br i1 %35, label %36, label %45

36:                                               ; preds = %29
  %37 = zext nneg i32 %34 to i64
  %38 = and i64 %37, 63
  %39 = shl nuw i64 1, %38
  %40 = xor i64 %39, -1
  %41 = lshr i64 %37, 6
  %42 = getelementptr inbounds i64, ptr %4, i64 %41
  %43 = load i64, ptr %42, align 8, !tbaa !50
  %44 = and i64 %43, %40
  store i64 %44, ptr %42, align 8, !tbaa !50
  br label %45

45:                                               ; preds = %36, %29
  %46 = add nuw nsw i64 %30, 1
  %47 = icmp eq i64 %46, %24
  br i1 %47, label %25, label %29, !llvm.loop !76

48:                                               ; preds = %25
  %49 = call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull %4) #21
  %50 = icmp eq i32 %49, 0
  br i1 %50, label %65, label %51

51:                                               ; preds = %48
  %52 = getelementptr inbounds i8, ptr %0, i64 20
  %53 = load i32, ptr %52, align 4, !tbaa !71
  %54 = call i32 @sched_getaffinity(i32 noundef %53, i64 noundef 128, ptr noundef nonnull %3) #21
  %55 = icmp eq i32 %54, 0
  br i1 %55, label %56, label %65

56:                                               ; preds = %51
  %57 = call i32 @bcmp(ptr noundef nonnull dereferenceable(128) %3, ptr noundef nonnull dereferenceable(128) %2, i64 128)
  %58 = icmp eq i32 %57, 0
  br i1 %58, label %59, label %65

59:                                               ; preds = %56
  %60 = load i32, ptr %52, align 4, !tbaa !71
  %61 = call i32 @sched_setaffinity(i32 noundef %60, i64 noundef 128, ptr noundef nonnull %4) #21
  %62 = icmp eq i32 %61, 0
  br i1 %62, label %63, label %65

63:                                               ; preds = %59
  %64 = getelementptr inbounds i8, ptr %0, i64 28
  store atomic i8 1, ptr %64 seq_cst, align 4
  br label %65

65:                                               ; preds = %63, %59, %56, %51, %48, %25
  %66 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef %0, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #21
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #17
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #17
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #17
  ret void
}

; Function Attrs: nounwind optsize
declare i32 @__sched_cpucount(i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.cttz.i64(i64, i1 immarg) #18

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @begin_all(ptr noundef %0) unnamed_addr #12 {
  %2 = getelementptr inbounds i8, ptr %0, i64 32
  br label %3

3:                                                ; preds = %6, %1
  %4 = tail call fastcc i32 @take_loose(ptr noundef %0) #25
  %5 = icmp sgt i32 %4, -1
  br i1 %5, label %6, label %18

6:                                                ; preds = %3
  %7 = atomicrmw add ptr %2, i32 1 seq_cst, align 8
  %8 = tail call fastcc zeroext i1 @give_to_extra(ptr noundef %0, i32 noundef %4) #24
  br i1 %8, label %3, label %9, !llvm.loop !77

9:                                                ; preds = %6
  %10 = atomicrmw sub ptr %2, i32 1 seq_cst, align 8
  %11 = getelementptr inbounds i8, ptr %0, i64 64
  %12 = load ptr, ptr %11, align 8, !tbaa !39
  %13 = lshr i32 %4, 6
  %14 = zext nneg i32 %13 to i64
  %15 = getelementptr inbounds i64, ptr %12, i64 %14
  %16 = and i32 %4, 63
  %17 = zext nneg i32 %16 to i64
  br label %54

18:                                               ; preds = %3
  %19 = getelementptr inbounds i8, ptr %0, i64 40
  %20 = load ptr, ptr %19, align 8, !tbaa !37
  %21 = getelementptr inbounds i8, ptr %20, i64 48
  %22 = load atomic i32, ptr %21 seq_cst, align 8
  %23 = icmp sgt i32 %22, 0
  br i1 %23, label %24, label %59

24:                                               ; preds = %18
  %25 = ptrtoint ptr %0 to i64
  %26 = zext nneg i32 %22 to i64
  br label %27

27:                                               ; preds = %24, %51
  %28 = phi i64 [ 0, %24 ], [ %52, %51 ]
  %29 = load ptr, ptr %19, align 8, !tbaa !37
  %30 = getelementptr inbounds i8, ptr %29, i64 80
  %31 = getelementptr inbounds [8192 x ptr], ptr %30, i64 0, i64 %28
  %32 = load ptr, ptr %31, align 8, !tbaa !10
  %33 = load atomic i64, ptr %32 seq_cst, align 128
  %34 = and i64 %33, 281474976710655
  %35 = icmp eq i64 %34, %25
  br i1 %35, label %36, label %51

36:                                               ; preds = %27
  %37 = cmpxchg ptr %32, i64 %33, i64 0 seq_cst seq_cst, align 128
  %38 = extractvalue { i64, i1 } %37, 1
  br i1 %38, label %39, label %51

39:                                               ; preds = %36
  %40 = extractvalue { i64, i1 } %37, 0
  %41 = lshr i64 %40, 48
  %42 = trunc nuw nsw i64 %41 to i32
  %43 = tail call fastcc zeroext i1 @give_to_extra(ptr noundef nonnull %0, i32 noundef %42) #24
  br i1 %43, label %51, label %44

44:                                               ; preds = %39
  %45 = atomicrmw sub ptr %2, i32 1 seq_cst, align 8
  %46 = getelementptr inbounds i8, ptr %0, i64 64
  %47 = load ptr, ptr %46, align 8, !tbaa !39
  %48 = lshr i64 %40, 54
  %49 = getelementptr inbounds i64, ptr %47, i64 %48
  %50 = and i64 %41, 63
  br label %54

51:                                               ; preds = %27, %36, %39
  %52 = add nuw nsw i64 %28, 1
  %53 = icmp eq i64 %52, %26
  br i1 %53, label %59, label %27, !llvm.loop !78

54:                                               ; preds = %44, %9
  %55 = phi i64 [ %17, %9 ], [ %50, %44 ]
  %56 = phi ptr [ %15, %9 ], [ %49, %44 ]
  %57 = shl nuw i64 1, %55
  %58 = atomicrmw or ptr %56, i64 %57 seq_cst, align 8
  br label %59

59:                                               ; preds = %51, %54, %18
  ret void
}

; Function Attrs: cold noinline nounwind optsize
define internal fastcc noundef zeroext i1 @give_to_extra(ptr noundef %0, i32 noundef %1) unnamed_addr #12 {
  %3 = getelementptr inbounds i8, ptr %0, i64 40
  %4 = load ptr, ptr %3, align 8, !tbaa !37
  %5 = getelementptr inbounds i8, ptr %4, i64 8
  %6 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %5) #21
  %7 = getelementptr inbounds i8, ptr %4, i64 72
  %8 = load ptr, ptr %7, align 8, !tbaa !61
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %14

10:                                               ; preds = %2
  %11 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #21
  %12 = tail call noalias dereferenceable_or_null(40) ptr @calloc(i64 noundef 1, i64 noundef 40) #22
  %13 = icmp eq ptr %12, null
  br i1 %13, label %29, label %22

14:                                               ; preds = %2
  %15 = load ptr, ptr %8, align 8, !tbaa !79
  store ptr %15, ptr %7, align 8, !tbaa !61
  %16 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #21
  %17 = getelementptr inbounds i8, ptr %8, i64 32
  store ptr %4, ptr %17, align 8, !tbaa !81
  %18 = getelementptr inbounds i8, ptr %8, i64 16
  store ptr %0, ptr %18, align 8, !tbaa !82
  %19 = getelementptr inbounds i8, ptr %8, i64 24
  store i32 %1, ptr %19, align 8, !tbaa !83
  %20 = getelementptr inbounds i8, ptr %8, i64 8
  store atomic i32 1, ptr %20 seq_cst, align 8
  %21 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %20, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #21
  br label %29

22:                                               ; preds = %10
  %23 = getelementptr inbounds i8, ptr %12, i64 32
  store ptr %4, ptr %23, align 8, !tbaa !81
  %24 = getelementptr inbounds i8, ptr %12, i64 16
  store ptr %0, ptr %24, align 8, !tbaa !82
  %25 = getelementptr inbounds i8, ptr %12, i64 24
  store i32 %1, ptr %25, align 8, !tbaa !83
  %26 = getelementptr inbounds i8, ptr %12, i64 8
  store atomic i32 1, ptr %26 seq_cst, align 8
  %27 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %4, i32 noundef -1, ptr noundef nonnull @run_extra, ptr noundef nonnull %12) #24
  br i1 %27, label %29, label %28

28:                                               ; preds = %22
  tail call void @free(ptr noundef nonnull %12) #21
  br label %29

29:                                               ; preds = %14, %22, %10, %28
  %30 = phi i1 [ false, %28 ], [ false, %10 ], [ true, %22 ], [ true, %14 ]
  ret i1 %30
}

; Function Attrs: nounwind optsize
define internal noalias noundef ptr @run_extra(ptr noundef %0) #2 {
  %2 = getelementptr inbounds i8, ptr %0, i64 32
  %3 = load ptr, ptr %2, align 8, !tbaa !81
  tail call fastcc void @become_helper(ptr noundef %3, ptr noundef nonnull @.str.1) #25
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = getelementptr inbounds i8, ptr %0, i64 24
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = getelementptr inbounds i8, ptr %3, i64 8
  %8 = getelementptr inbounds i8, ptr %3, i64 72
  br label %9

9:                                                ; preds = %24, %1
  %10 = load ptr, ptr %4, align 8, !tbaa !82
  %11 = load i32, ptr %5, align 8, !tbaa !83
  tail call fastcc void @run_task(ptr noundef %10, i32 noundef %11) #25
  %12 = load ptr, ptr %4, align 8, !tbaa !82
  store atomic i32 0, ptr %6 seq_cst, align 8
  %13 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #21
  %14 = load ptr, ptr %8, align 8, !tbaa !61
  store ptr %14, ptr %0, align 8, !tbaa !79
  store ptr %0, ptr %8, align 8, !tbaa !61
  %15 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #21
  %16 = getelementptr inbounds i8, ptr %12, i64 32
  %17 = atomicrmw sub ptr %16, i32 1 seq_cst, align 8
  %18 = icmp eq i32 %17, -2147483647
  br i1 %18, label %19, label %21

19:                                               ; preds = %9
  %20 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %16, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #21
  br label %21

21:                                               ; preds = %9, %19
  %22 = load atomic i32, ptr %6 seq_cst, align 8
  %23 = icmp eq i32 %22, 0
  br i1 %23, label %25, label %24

24:                                               ; preds = %27, %21
  br label %9

25:                                               ; preds = %21, %27
  %26 = tail call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %6, i32 noundef 0, i64 noundef 1000000000) #25
  br i1 %26, label %27, label %30

27:                                               ; preds = %25, %39
  %28 = load atomic i32, ptr %6 seq_cst, align 8
  %29 = icmp eq i32 %28, 0
  br i1 %29, label %25, label %24, !llvm.loop !84

30:                                               ; preds = %25
  %31 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #21
  br label %32

32:                                               ; preds = %32, %30
  %33 = phi ptr [ %8, %30 ], [ %34, %32 ]
  %34 = load ptr, ptr %33, align 8, !tbaa !10
  %35 = icmp eq ptr %34, null
  %36 = icmp eq ptr %34, %0
  %37 = or i1 %35, %36
  br i1 %37, label %38, label %32, !llvm.loop !85

38:                                               ; preds = %32
  br i1 %35, label %39, label %41

39:                                               ; preds = %38
  %40 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #21
  br label %27

41:                                               ; preds = %38
  %42 = load ptr, ptr %0, align 8, !tbaa !79
  store ptr %42, ptr %33, align 8, !tbaa !10
  %43 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #21
  tail call void @free(ptr noundef %0) #21
  ret ptr null
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #19

; Function Attrs: nofree nounwind willreturn memory(argmem: read)
declare i32 @bcmp(ptr nocapture, ptr nocapture, i64) local_unnamed_addr #20

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.umin.i32(i32, i32) #19

attributes #0 = { mustprogress nofree norecurse nosync nounwind optsize willreturn memory(argmem: readwrite) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #1 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #2 = { nounwind optsize "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #3 = { mustprogress nofree norecurse nounwind optsize willreturn memory(readwrite, argmem: none, inaccessiblemem: none) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #4 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #5 = { nounwind optsize "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #6 = { mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #7 = { optsize "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #8 = { mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #9 = { mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #10 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #11 = { nofree norecurse nounwind optsize memory(readwrite, inaccessiblemem: none) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #12 = { cold noinline nounwind optsize "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #13 = { mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized,aligned") allocsize(1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #14 = { noreturn nounwind optsize "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #15 = { cold nofree noinline norecurse nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none) "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #16 = { mustprogress nofree nosync nounwind optsize willreturn memory(none) "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #17 = { nounwind }
attributes #18 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #19 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #20 = { nofree nounwind willreturn memory(argmem: read) }
attributes #21 = { nounwind optsize }
attributes #22 = { nounwind optsize allocsize(0,1) }
attributes #23 = { nounwind optsize allocsize(0) }
attributes #24 = { cold optsize }
attributes #25 = { optsize }
attributes #26 = { nounwind optsize allocsize(1) }
attributes #27 = { nounwind optsize willreturn memory(none) }

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
!14 = !{!15, !16, i64 52}
!15 = !{!"Pool", !11, i64 0, !5, i64 8, !5, i64 48, !16, i64 52, !4, i64 56, !11, i64 64, !11, i64 72, !5, i64 80}
!16 = !{!"_Bool", !5, i64 0}
!17 = !{i8 0, i8 2}
!18 = !{}
!19 = !{!15, !4, i64 56}
!20 = !{!15, !11, i64 64}
!21 = distinct !{!21, !22}
!22 = !{!"llvm.loop.mustprogress"}
!23 = !{!15, !11, i64 0}
!24 = !{!25, !11, i64 0}
!25 = !{!"", !11, i64 0, !4, i64 8, !4, i64 12, !4, i64 16}
!26 = !{!25, !4, i64 8}
!27 = !{!25, !4, i64 12}
!28 = !{!29, !11, i64 0}
!29 = !{!"", !11, i64 0, !11, i64 8, !11, i64 16, !11, i64 24, !11, i64 32, !11, i64 40, !11, i64 48}
!30 = !{!31, !11, i64 0}
!31 = !{!"", !11, i64 0, !4, i64 8}
!32 = !{!31, !4, i64 8}
!33 = !{!34, !11, i64 16}
!34 = !{!"", !31, i64 0, !11, i64 16, !11, i64 24, !5, i64 32, !4, i64 36, !11, i64 40, !5, i64 48, !5, i64 56, !4, i64 60, !11, i64 64, !5, i64 72, !5, i64 76, !5, i64 80, !5, i64 88}
!35 = !{!34, !11, i64 24}
!36 = !{!34, !4, i64 36}
!37 = !{!34, !11, i64 40}
!38 = !{!34, !4, i64 60}
!39 = !{!34, !11, i64 64}
!40 = !{!25, !4, i64 16}
!41 = !{!5, !5, i64 0}
!42 = distinct !{!42, !22}
!43 = distinct !{!43, !22}
!44 = distinct !{!44, !22}
!45 = distinct !{!45, !22}
!46 = distinct !{!46, !22}
!47 = distinct !{!47, !22}
!48 = distinct !{!48, !22}
!49 = distinct !{!49, !22}
!50 = !{!7, !7, i64 0}
!51 = distinct !{!51, !22}
!52 = !{!53, !7, i64 0}
!53 = !{!"timespec", !7, i64 0, !7, i64 8}
!54 = !{!53, !7, i64 8}
!55 = !{!29, !11, i64 32}
!56 = !{!29, !11, i64 40}
!57 = !{!29, !11, i64 8}
!58 = distinct !{!58, !22}
!59 = !{!29, !11, i64 16}
!60 = !{!29, !11, i64 48}
!61 = !{!15, !11, i64 72}
!62 = distinct !{!62, !22}
!63 = !{!29, !11, i64 24}
!64 = distinct !{!64, !22}
!65 = distinct !{!65, !22}
!66 = !{!67, !11, i64 8}
!67 = !{!"", !5, i64 0, !11, i64 8, !4, i64 16, !4, i64 20, !5, i64 24, !5, i64 28}
!68 = !{!67, !4, i64 16}
!69 = distinct !{!69, !22}
!70 = distinct !{!70, !22}
!71 = !{!67, !4, i64 20}
!72 = distinct !{!72, !22}
!73 = distinct !{!73, !22}
!74 = distinct !{!74, !22}
!75 = !{i64 0, i64 128, !41}
!76 = distinct !{!76, !22}
!77 = distinct !{!77, !22}
!78 = distinct !{!78, !22}
!79 = !{!80, !11, i64 0}
!80 = !{!"Extra", !11, i64 0, !5, i64 8, !11, i64 16, !4, i64 24, !11, i64 32}
!81 = !{!80, !11, i64 32}
!82 = !{!80, !11, i64 16}
!83 = !{!80, !4, i64 24}
!84 = distinct !{!84, !22}
!85 = distinct !{!85, !22}
