; Made by `python -m tools.thread_pool_code` of pool.c and its headers, sha256 e4502e93cee5c2da03a123a7816db3ff3d9324190a35451814e7845ebe627e2f
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
  %2 = tail call i32 @pthread_key_create(ptr noundef nonnull @state_key, ptr noundef nonnull @free) #20
  %3 = icmp eq i32 %2, 0
  br i1 %3, label %4, label %6

4:                                                ; preds = %1
  %5 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_threads, ptr noundef null) #20
  br label %6

6:                                                ; preds = %1, %4
  %7 = phi i32 [ %5, %4 ], [ %2, %1 ]
  ret i32 %7
}

; Function Attrs: nounwind optsize
define internal range(i32 0, 13) i32 @use(i32 noundef %0, i32 noundef %1, i32 noundef %2, ptr nocapture noundef readonly %3, i32 noundef %4) #2 {
  %6 = load i32, ptr @state_key, align 4, !tbaa !13
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #20
  %8 = icmp eq i32 %0, 0
  br i1 %8, label %9, label %12

9:                                                ; preds = %5
  %10 = load i32, ptr @state_key, align 4, !tbaa !13
  %11 = tail call i32 @pthread_setspecific(i32 noundef %10, ptr noundef null) #20
  tail call void @free(ptr noundef %7) #20
  br label %80

12:                                               ; preds = %5
  %13 = icmp ne i32 %2, 0
  %14 = zext i1 %13 to i8
  %15 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @pools_lock) #20
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
  %41 = tail call noalias dereferenceable_or_null(65616) ptr @calloc(i64 noundef 1, i64 noundef 65616) #21
  %42 = icmp eq ptr %41, null
  br i1 %42, label %60, label %43

43:                                               ; preds = %40
  %44 = add nsw i32 %4, 1
  %45 = sext i32 %44 to i64
  %46 = shl nsw i64 %45, 2
  %47 = tail call noalias ptr @malloc(i64 noundef %46) #22
  %48 = getelementptr inbounds i8, ptr %41, i64 64
  store ptr %47, ptr %48, align 8, !tbaa !20
  %49 = getelementptr inbounds i8, ptr %41, i64 8
  %50 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %49, ptr noundef null) #20
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
  %62 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @pools_lock) #20
  %63 = icmp eq ptr %7, null
  %64 = icmp ne ptr %61, null
  %65 = and i1 %63, %64
  br i1 %65, label %66, label %72

66:                                               ; preds = %60
  %67 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #21
  %68 = icmp eq ptr %67, null
  br i1 %68, label %80, label %69

69:                                               ; preds = %66
  %70 = load i32, ptr @state_key, align 4, !tbaa !13
  %71 = tail call i32 @pthread_setspecific(i32 noundef %70, ptr noundef nonnull %67) #20
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
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #20
  %8 = icmp eq ptr %7, null
  br i1 %8, label %9, label %12

9:                                                ; preds = %3
  %10 = load ptr, ptr @tvm, align 8, !tbaa !28
  %11 = tail call i32 %10(ptr noundef %0, ptr noundef %1, i32 noundef %2) #20
  br label %296

12:                                               ; preds = %3
  %13 = icmp sgt i32 %2, 0
  br i1 %13, label %17, label %14

14:                                               ; preds = %12
  %15 = getelementptr inbounds i8, ptr %7, i64 8
  %16 = load i32, ptr %15, align 8, !tbaa !26
  br label %17

17:                                               ; preds = %12, %14
  %18 = phi i32 [ %16, %14 ], [ %2, %12 ]
  call void @llvm.lifetime.start.p0(i64 104, ptr nonnull %5) #16
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
  %41 = call noalias ptr @calloc(i64 noundef %40, i64 noundef 8) #21
  store ptr %41, ptr %28, align 64, !tbaa !39
  %42 = icmp eq ptr %41, null
  br i1 %42, label %43, label %46

43:                                               ; preds = %39
  %44 = load ptr, ptr @tvm, align 8, !tbaa !28
  %45 = call i32 %44(ptr noundef %0, ptr noundef %1, i32 noundef %18) #20
  br label %294

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
  br i1 %34, label %129, label %141

60:                                               ; preds = %52
  %61 = add nsw i32 %18, -1
  store i32 %61, ptr %22, align 32, !tbaa !41
  %62 = call i32 @llvm.umin.i32(i32 %61, i32 %55)
  %63 = getelementptr inbounds i8, ptr %33, i64 48
  %64 = load atomic i32, ptr %63 acquire, align 8
  %65 = icmp slt i32 %64, %62
  br i1 %65, label %66, label %68

66:                                               ; preds = %60
  call fastcc void @grow(ptr noundef nonnull %33, i32 noundef %62) #23
  %67 = load atomic i32, ptr %63 seq_cst, align 8
  br label %68

68:                                               ; preds = %66, %60
  %69 = phi i32 [ %67, %66 ], [ %64, %60 ]
  %70 = getelementptr inbounds i8, ptr %33, i64 80
  %71 = sext i32 %69 to i64
  %72 = zext nneg i32 %18 to i64
  br label %73

73:                                               ; preds = %119, %68
  %74 = phi i64 [ 1, %68 ], [ %122, %119 ]
  %75 = phi i32 [ %61, %68 ], [ %120, %119 ]
  %76 = phi i32 [ 0, %68 ], [ %121, %119 ]
  %77 = icmp sge i32 %76, %55
  %78 = icmp sgt i64 %74, %71
  %79 = select i1 %77, i1 true, i1 %78
  br i1 %79, label %88, label %80

80:                                               ; preds = %73
  %81 = add nsw i64 %74, -1
  %82 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %81
  %83 = load ptr, ptr %82, align 8, !tbaa !10
  %84 = trunc nuw nsw i64 %74 to i32
  %85 = call fastcc zeroext i1 @offer(ptr noundef %83, ptr noundef nonnull %5, i32 noundef %84) #24
  %86 = icmp sge i32 %75, %69
  %87 = select i1 %85, i1 true, i1 %86
  br i1 %87, label %106, label %93

88:                                               ; preds = %73
  %89 = icmp sge i32 %75, %69
  %90 = select i1 %77, i1 true, i1 %89
  br i1 %90, label %110, label %91

91:                                               ; preds = %88
  %92 = trunc nuw nsw i64 %74 to i32
  br label %93

93:                                               ; preds = %91, %80
  %94 = phi i32 [ %92, %91 ], [ %84, %80 ]
  %95 = sext i32 %75 to i64
  br label %96

96:                                               ; preds = %96, %93
  %97 = phi i64 [ %95, %93 ], [ %98, %96 ]
  %98 = add nsw i64 %97, 1
  %99 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %97
  %100 = load ptr, ptr %99, align 8, !tbaa !10
  %101 = call fastcc zeroext i1 @offer(ptr noundef %100, ptr noundef nonnull %5, i32 noundef %94) #24
  %102 = icmp sge i64 %98, %71
  %103 = select i1 %101, i1 true, i1 %102
  br i1 %103, label %104, label %96, !llvm.loop !42

104:                                              ; preds = %96
  %105 = trunc nsw i64 %98 to i32
  br i1 %101, label %107, label %110

106:                                              ; preds = %80
  br i1 %85, label %107, label %110

107:                                              ; preds = %106, %104
  %108 = phi i32 [ %105, %104 ], [ %75, %106 ]
  %109 = add nsw i32 %76, 1
  br label %119

110:                                              ; preds = %106, %104, %88
  %111 = phi i32 [ %105, %104 ], [ %75, %106 ], [ %75, %88 ]
  %112 = load ptr, ptr %28, align 64, !tbaa !39
  %113 = lshr i64 %74, 6
  %114 = and i64 %113, 67108863
  %115 = getelementptr inbounds i64, ptr %112, i64 %114
  %116 = and i64 %74, 63
  %117 = shl nuw i64 1, %116
  %118 = atomicrmw or ptr %115, i64 %117 seq_cst, align 8
  br label %119

119:                                              ; preds = %110, %107
  %120 = phi i32 [ %108, %107 ], [ %111, %110 ]
  %121 = phi i32 [ %109, %107 ], [ %76, %110 ]
  %122 = add nuw nsw i64 %74, 1
  %123 = icmp eq i64 %122, %72
  br i1 %123, label %124, label %73, !llvm.loop !43

124:                                              ; preds = %119
  %125 = icmp eq i32 %61, %121
  br i1 %125, label %141, label %126

126:                                              ; preds = %124
  %127 = sub nsw i32 %61, %121
  %128 = atomicrmw sub ptr %22, i32 %127 seq_cst, align 32
  br label %141

129:                                              ; preds = %58, %129
  %130 = phi i32 [ %139, %129 ], [ 1, %58 ]
  %131 = load ptr, ptr %28, align 64, !tbaa !39
  %132 = lshr i32 %130, 6
  %133 = zext nneg i32 %132 to i64
  %134 = getelementptr inbounds i64, ptr %131, i64 %133
  %135 = and i32 %130, 63
  %136 = zext nneg i32 %135 to i64
  %137 = shl nuw i64 1, %136
  %138 = atomicrmw or ptr %134, i64 %137 seq_cst, align 8
  %139 = add nuw nsw i32 %130, 1
  %140 = icmp eq i32 %139, %18
  br i1 %140, label %141, label %129, !llvm.loop !44

141:                                              ; preds = %129, %126, %124, %58
  %142 = phi i1 [ false, %58 ], [ true, %124 ], [ true, %126 ], [ false, %129 ]
  %143 = phi i32 [ %59, %58 ], [ %55, %124 ], [ %55, %126 ], [ %59, %129 ]
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef 0) #24
  %144 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #24
  %145 = icmp sgt i32 %144, -1
  br i1 %145, label %147, label %146

146:                                              ; preds = %194, %141
  br i1 %142, label %197, label %228

147:                                              ; preds = %141, %194
  %148 = phi i32 [ %195, %194 ], [ %144, %141 ]
  br i1 %142, label %149, label %193

149:                                              ; preds = %147
  %150 = load atomic i32, ptr %22 seq_cst, align 32
  %151 = icmp ult i32 %150, %143
  br i1 %151, label %152, label %193

152:                                              ; preds = %149
  %153 = load i32, ptr %27, align 4, !tbaa !38
  %154 = icmp sgt i32 %153, 0
  br i1 %154, label %155, label %193

155:                                              ; preds = %152
  %156 = load ptr, ptr %28, align 64, !tbaa !39
  %157 = zext nneg i32 %153 to i64
  %158 = load atomic i64, ptr %156 monotonic, align 8
  %159 = icmp eq i64 %158, 0
  br i1 %159, label %160, label %170

160:                                              ; preds = %155, %164
  %161 = phi i64 [ %162, %164 ], [ 0, %155 ]
  %162 = add nuw nsw i64 %161, 1
  %163 = icmp eq i64 %162, %157
  br i1 %163, label %193, label %164, !llvm.loop !45

164:                                              ; preds = %160
  %165 = getelementptr inbounds i64, ptr %156, i64 %162
  %166 = load atomic i64, ptr %165 monotonic, align 8
  %167 = icmp eq i64 %166, 0
  br i1 %167, label %160, label %168, !llvm.loop !45

168:                                              ; preds = %164
  %169 = icmp ult i64 %162, %157
  br i1 %169, label %170, label %193

170:                                              ; preds = %168, %155
  %171 = atomicrmw add ptr %22, i32 1 seq_cst, align 32
  %172 = load ptr, ptr %24, align 8, !tbaa !37
  %173 = getelementptr inbounds i8, ptr %172, i64 48
  %174 = load atomic i32, ptr %173 acquire, align 8
  %175 = icmp sgt i32 %174, 0
  br i1 %175, label %176, label %191

176:                                              ; preds = %170
  %177 = getelementptr inbounds i8, ptr %172, i64 80
  %178 = zext nneg i32 %174 to i64
  %179 = load ptr, ptr %177, align 8, !tbaa !10
  %180 = call fastcc zeroext i1 @offer(ptr noundef %179, ptr noundef nonnull %5, i32 noundef %148) #24
  br i1 %180, label %194, label %181

181:                                              ; preds = %176, %185
  %182 = phi i64 [ %183, %185 ], [ 0, %176 ]
  %183 = add nuw nsw i64 %182, 1
  %184 = icmp eq i64 %183, %178
  br i1 %184, label %191, label %185, !llvm.loop !46

185:                                              ; preds = %181
  %186 = getelementptr inbounds [8192 x ptr], ptr %177, i64 0, i64 %183
  %187 = load ptr, ptr %186, align 8, !tbaa !10
  %188 = call fastcc zeroext i1 @offer(ptr noundef %187, ptr noundef nonnull %5, i32 noundef %148) #24
  br i1 %188, label %189, label %181, !llvm.loop !46

189:                                              ; preds = %185
  %190 = icmp ult i64 %183, %178
  br i1 %190, label %194, label %191

191:                                              ; preds = %181, %189, %170
  %192 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  br label %193

193:                                              ; preds = %160, %191, %168, %152, %149, %147
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %148) #24
  br label %194

194:                                              ; preds = %193, %189, %176
  %195 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #24
  %196 = icmp sgt i32 %195, -1
  br i1 %196, label %147, label %146, !llvm.loop !47

197:                                              ; preds = %146
  %198 = load atomic i32, ptr %22 acquire, align 32
  %199 = icmp eq i32 %198, 0
  br i1 %199, label %228, label %200

200:                                              ; preds = %197
  %201 = load ptr, ptr %24, align 8, !tbaa !37
  %202 = getelementptr inbounds i8, ptr %201, i64 48
  %203 = load atomic i32, ptr %202 seq_cst, align 8
  %204 = icmp sgt i32 %203, 0
  br i1 %204, label %205, label %228

205:                                              ; preds = %200
  %206 = ptrtoint ptr %5 to i64
  %207 = zext nneg i32 %203 to i64
  br label %208

208:                                              ; preds = %225, %205
  %209 = phi i64 [ 0, %205 ], [ %226, %225 ]
  %210 = load ptr, ptr %24, align 8, !tbaa !37
  %211 = getelementptr inbounds i8, ptr %210, i64 80
  %212 = getelementptr inbounds [8192 x ptr], ptr %211, i64 0, i64 %209
  %213 = load ptr, ptr %212, align 8, !tbaa !10
  %214 = load atomic i64, ptr %213 seq_cst, align 128
  %215 = and i64 %214, 281474976710655
  %216 = icmp eq i64 %215, %206
  br i1 %216, label %217, label %225

217:                                              ; preds = %208
  %218 = cmpxchg ptr %213, i64 %214, i64 0 seq_cst seq_cst, align 128
  %219 = extractvalue { i64, i1 } %218, 1
  br i1 %219, label %220, label %225

220:                                              ; preds = %217
  %221 = extractvalue { i64, i1 } %218, 0
  %222 = lshr i64 %221, 48
  %223 = trunc nuw nsw i64 %222 to i32
  %224 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %223) #24
  br label %225

225:                                              ; preds = %220, %217, %208
  %226 = add nuw nsw i64 %209, 1
  %227 = icmp eq i64 %226, %207
  br i1 %227, label %228, label %208, !llvm.loop !48

228:                                              ; preds = %225, %200, %197, %146
  %229 = load i32, ptr %23, align 4, !tbaa !36
  %230 = sext i32 %229 to i64
  %231 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %230
  %232 = load i64, ptr %231, align 8, !tbaa !49
  %233 = icmp eq i32 %229, 2
  %234 = icmp eq i32 %229, 1
  %235 = getelementptr inbounds i8, ptr %4, i64 8
  br label %236

236:                                              ; preds = %274, %228
  %237 = phi i64 [ 0, %228 ], [ %275, %274 ]
  %238 = phi i32 [ 0, %228 ], [ %276, %274 ]
  br label %239

239:                                              ; preds = %255, %236
  %240 = phi i32 [ %238, %236 ], [ %244, %255 ]
  %241 = load atomic i32, ptr %22 acquire, align 32
  switch i32 %241, label %242 [
    i32 0, label %277
    i32 -2147483648, label %277
  ]

242:                                              ; preds = %239
  br i1 %233, label %266, label %243

243:                                              ; preds = %242
  call void @llvm.x86.sse2.pause()
  %244 = add i32 %240, 1
  %245 = and i32 %244, 15
  %246 = icmp eq i32 %245, 0
  br i1 %246, label %247, label %255

247:                                              ; preds = %243
  br i1 %234, label %248, label %256

248:                                              ; preds = %247
  %249 = icmp ugt i32 %244, 1024
  br i1 %249, label %250, label %252

250:                                              ; preds = %248
  %251 = call i32 @sched_yield() #20
  br label %252

252:                                              ; preds = %250, %248
  %253 = load atomic i32, ptr @always_users monotonic, align 4
  %254 = icmp sgt i32 %253, 0
  br i1 %254, label %255, label %266

255:                                              ; preds = %252, %243
  br label %239, !llvm.loop !50

256:                                              ; preds = %247
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #16
  %257 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #20
  %258 = load i64, ptr %4, align 8, !tbaa !51
  %259 = mul nsw i64 %258, 1000000000
  %260 = load i64, ptr %235, align 8, !tbaa !53
  %261 = add nsw i64 %259, %260
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #16
  %262 = icmp eq i64 %237, 0
  %263 = add nsw i64 %261, %232
  %264 = select i1 %262, i64 %263, i64 %237
  %265 = icmp slt i64 %261, %264
  br i1 %265, label %274, label %266

266:                                              ; preds = %252, %242, %256
  %267 = phi i32 [ %244, %256 ], [ %238, %242 ], [ %244, %252 ]
  %268 = phi i64 [ %264, %256 ], [ %237, %242 ], [ %237, %252 ]
  %269 = atomicrmw or ptr %22, i32 -2147483648 seq_cst, align 8
  %270 = or i32 %269, -2147483648
  %271 = icmp eq i32 %270, -2147483648
  br i1 %271, label %274, label %272

272:                                              ; preds = %266
  %273 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %22, i32 noundef %270, i64 noundef 0) #24
  br label %274

274:                                              ; preds = %272, %266, %256
  %275 = phi i64 [ %264, %256 ], [ %268, %272 ], [ %268, %266 ]
  %276 = phi i32 [ %244, %256 ], [ %267, %272 ], [ %267, %266 ]
  br label %236, !llvm.loop !50

277:                                              ; preds = %239, %239
  %278 = load i32, ptr %47, align 8, !tbaa !40
  %279 = add nsw i32 %278, -1
  store i32 %279, ptr %47, align 8, !tbaa !40
  %280 = load ptr, ptr %28, align 64, !tbaa !39
  %281 = icmp eq ptr %280, %29
  br i1 %281, label %283, label %282

282:                                              ; preds = %277
  call void @free(ptr noundef %280) #20
  br label %283

283:                                              ; preds = %282, %277
  %284 = load atomic i8, ptr %26 seq_cst, align 8
  %285 = trunc i8 %284 to i1
  br i1 %285, label %286, label %294

286:                                              ; preds = %283
  %287 = load atomic i64, ptr %25 seq_cst, align 16
  %288 = icmp eq i64 %287, 0
  br i1 %288, label %294, label %289

289:                                              ; preds = %286
  %290 = inttoptr i64 %287 to ptr
  %291 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 32), align 8, !tbaa !54
  call void %291(ptr noundef nonnull %290) #20
  %292 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !55
  %293 = call i32 %292(ptr noundef nonnull %290) #20
  br label %294

294:                                              ; preds = %43, %283, %286, %289
  %295 = phi i32 [ %45, %43 ], [ 0, %283 ], [ -1, %289 ], [ -1, %286 ]
  call void @llvm.lifetime.end.p0(i64 104, ptr nonnull %5) #16
  br label %296

296:                                              ; preds = %294, %9
  %297 = phi i32 [ %295, %294 ], [ %11, %9 ]
  ret i32 %297
}

; Function Attrs: nounwind optsize
define internal i32 @barrier(i32 noundef %0, ptr noundef %1) #2 {
  %3 = alloca %struct.timespec, align 8
  %4 = load ptr, ptr %1, align 8, !tbaa !30
  %5 = icmp eq ptr %4, %1
  br i1 %5, label %9, label %6

6:                                                ; preds = %2
  %7 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 8), align 8, !tbaa !56
  %8 = tail call i32 %7(i32 noundef %0, ptr noundef nonnull %1) #20
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
  %27 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %10, i32 noundef 129, i32 noundef 2147483647, ptr noundef null, ptr noundef null, i32 noundef 0) #20
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
  br i1 %38, label %39, label %28, !llvm.loop !57

39:                                               ; preds = %35
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #16
  %40 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #20
  %41 = load i64, ptr %3, align 8, !tbaa !51
  %42 = mul nsw i64 %41, 1000000000
  %43 = load i64, ptr %21, align 8, !tbaa !53
  %44 = add nsw i64 %42, %43
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #16
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
  call fastcc void @begin_all(ptr noundef nonnull %1) #23
  %54 = atomicrmw add ptr %18, i32 1 seq_cst, align 8
  %55 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %10, i32 noundef %11, i64 noundef 10000000) #24
  %56 = atomicrmw sub ptr %18, i32 1 seq_cst, align 8
  br label %57

57:                                               ; preds = %53, %39
  br label %50, !llvm.loop !57

58:                                               ; preds = %32, %28, %26, %22, %6
  %59 = phi i32 [ %8, %6 ], [ 0, %26 ], [ 0, %22 ], [ 0, %28 ], [ -1, %32 ]
  ret i32 %59
}

; Function Attrs: nounwind optsize
define internal i32 @number(ptr nocapture readnone %0, ptr nocapture readnone %1, i32 %2, ptr noundef %3) #2 {
  %5 = load i32, ptr @state_key, align 4, !tbaa !13
  %6 = tail call ptr @pthread_getspecific(i32 noundef %5) #20
  %7 = icmp eq ptr %6, null
  br i1 %7, label %8, label %12

8:                                                ; preds = %4
  %9 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 16), align 8, !tbaa !58
  %10 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 48), align 8, !tbaa !59
  %11 = tail call i32 %9(ptr noundef %10, ptr noundef null, i32 noundef 0, ptr noundef %3) #20
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
  %1 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @pools_lock, ptr noundef null) #20
  %2 = load ptr, ptr @pools, align 8, !tbaa !10
  %3 = icmp eq ptr %2, null
  br i1 %3, label %4, label %5

4:                                                ; preds = %5, %0
  ret void

5:                                                ; preds = %0, %5
  %6 = phi ptr [ %11, %5 ], [ %2, %0 ]
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %7, ptr noundef null) #20
  %9 = getelementptr inbounds i8, ptr %6, i64 48
  store atomic i32 0, ptr %9 seq_cst, align 8
  %10 = getelementptr inbounds i8, ptr %6, i64 72
  store ptr null, ptr %10, align 8, !tbaa !60
  %11 = load ptr, ptr %6, align 8, !tbaa !10
  %12 = icmp eq ptr %11, null
  br i1 %12, label %4, label %5, !llvm.loop !61
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
  %8 = tail call i32 %5(i32 noundef %1, ptr noundef %0, ptr noundef %7) #20
  %9 = icmp eq i32 %8, 0
  br i1 %9, label %25, label %10

10:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #16
  store ptr null, ptr %3, align 8, !tbaa !10
  %11 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !62
  call void %11(ptr noundef nonnull %3) #20
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
  %21 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !55
  %22 = load ptr, ptr %3, align 8, !tbaa !10
  %23 = call i32 %21(ptr noundef %22) #20
  br label %24

24:                                               ; preds = %20, %15, %10
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #16
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
  br i1 %23, label %12, label %30, !llvm.loop !63

25:                                               ; preds = %12
  %26 = add nuw nsw i64 %8, 1
  %27 = load i32, ptr %2, align 4, !tbaa !38
  %28 = sext i32 %27 to i64
  %29 = icmp slt i64 %26, %28
  br i1 %29, label %7, label %36, !llvm.loop !64

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
  %4 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %3) #20
  %5 = getelementptr inbounds i8, ptr %0, i64 48
  %6 = load atomic i32, ptr %5 seq_cst, align 8
  %7 = icmp slt i32 %6, %1
  br i1 %7, label %8, label %34

8:                                                ; preds = %2
  %9 = getelementptr inbounds i8, ptr %0, i64 80
  %10 = sext i32 %6 to i64
  br label %11

11:                                               ; preds = %8, %30
  %12 = phi i64 [ %10, %8 ], [ %31, %30 ]
  %13 = getelementptr inbounds [8192 x ptr], ptr %9, i64 0, i64 %12
  %14 = load ptr, ptr %13, align 8, !tbaa !10
  %15 = icmp eq ptr %14, null
  br i1 %15, label %18, label %16

16:                                               ; preds = %11
  %17 = trunc nsw i64 %12 to i32
  br label %25

18:                                               ; preds = %11
  %19 = tail call noalias align 128 dereferenceable_or_null(128) ptr @aligned_alloc(i64 noundef 128, i64 noundef 128) #25
  %20 = icmp eq ptr %19, null
  br i1 %20, label %34, label %21

21:                                               ; preds = %18
  %22 = getelementptr inbounds i8, ptr %19, i64 8
  store ptr %0, ptr %22, align 8, !tbaa !65
  %23 = getelementptr inbounds i8, ptr %19, i64 16
  %24 = trunc nsw i64 %12 to i32
  store i32 %24, ptr %23, align 16, !tbaa !67
  store ptr %19, ptr %13, align 8, !tbaa !10
  br label %25

25:                                               ; preds = %16, %21
  %26 = phi i32 [ %17, %16 ], [ %24, %21 ]
  %27 = phi ptr [ %14, %16 ], [ %19, %21 ]
  store i64 0, ptr %27, align 8, !tbaa !41
  %28 = load ptr, ptr %13, align 8, !tbaa !10
  %29 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %0, i32 noundef %26, ptr noundef nonnull @run_worker, ptr noundef %28) #23
  br i1 %29, label %30, label %34

30:                                               ; preds = %25
  %31 = add nsw i64 %12, 1
  %32 = trunc i64 %31 to i32
  store atomic i32 %32, ptr %5 seq_cst, align 8
  %33 = icmp eq i32 %32, %1
  br i1 %33, label %34, label %11, !llvm.loop !68

34:                                               ; preds = %30, %25, %18, %2
  %35 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %3) #20
  ret void
}

; Function Attrs: nounwind optsize
define internal fastcc noundef zeroext i1 @offer(ptr noundef %0, ptr noundef %1, i32 noundef %2) unnamed_addr #2 {
  %4 = load atomic i64, ptr %0 monotonic, align 128
  %5 = ptrtoint ptr %1 to i64
  %6 = zext i32 %2 to i64
  %7 = shl i64 %6, 48
  %8 = or i64 %7, %5
  br label %9

9:                                                ; preds = %12, %3
  %10 = phi i64 [ %4, %3 ], [ %15, %12 ]
  %11 = icmp ult i64 %10, 2
  br i1 %11, label %12, label %20

12:                                               ; preds = %9
  %13 = cmpxchg weak ptr %0, i64 %10, i64 %8 seq_cst seq_cst, align 128
  %14 = extractvalue { i64, i1 } %13, 1
  %15 = extractvalue { i64, i1 } %13, 0
  br i1 %14, label %16, label %9, !llvm.loop !69

16:                                               ; preds = %12
  %17 = icmp eq i64 %10, 1
  br i1 %17, label %18, label %20

18:                                               ; preds = %16
  %19 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %0, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %20

20:                                               ; preds = %9, %16, %18
  ret i1 %11
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
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #16
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %5, i8 0, i64 128, i1 false)
  %10 = getelementptr inbounds i8, ptr %0, i64 52
  %11 = load i8, ptr %10, align 4, !tbaa !14, !range !17, !noundef !18
  %12 = trunc nuw i8 %11 to i1
  %13 = icmp sgt i32 %1, -1
  %14 = and i1 %13, %12
  br i1 %14, label %18, label %15

15:                                               ; preds = %4
  %16 = getelementptr inbounds i8, ptr %0, i64 56
  %17 = load i32, ptr %16, align 8, !tbaa !19
  br label %38

18:                                               ; preds = %4
  %19 = add nuw nsw i32 %1, 1
  %20 = getelementptr inbounds i8, ptr %0, i64 56
  %21 = load i32, ptr %20, align 8, !tbaa !19
  %22 = icmp slt i32 %19, %21
  br i1 %22, label %23, label %38

23:                                               ; preds = %18
  %24 = getelementptr inbounds i8, ptr %0, i64 64
  %25 = load ptr, ptr %24, align 8, !tbaa !20
  %26 = zext nneg i32 %19 to i64
  %27 = getelementptr inbounds i32, ptr %25, i64 %26
  %28 = load i32, ptr %27, align 4, !tbaa !13
  %29 = icmp ult i32 %28, 1024
  br i1 %29, label %30, label %61

30:                                               ; preds = %23
  %31 = zext nneg i32 %28 to i64
  %32 = and i64 %31, 63
  %33 = shl nuw i64 1, %32
  %34 = lshr i64 %31, 6
  %35 = getelementptr inbounds i64, ptr %5, i64 %34
  %36 = load i64, ptr %35, align 8, !tbaa !49
  %37 = or i64 %36, %33
  store i64 %37, ptr %35, align 8, !tbaa !49
  br label %61

38:                                               ; preds = %15, %18
  %39 = phi i32 [ %17, %15 ], [ %21, %18 ]
  %40 = icmp sgt i32 %39, 0
  br i1 %40, label %41, label %61

41:                                               ; preds = %38
  %42 = getelementptr inbounds i8, ptr %0, i64 64
  %43 = load ptr, ptr %42, align 8, !tbaa !20
  %44 = zext nneg i32 %39 to i64
  br label %45

45:                                               ; preds = %41, %58
  %46 = phi i64 [ 0, %41 ], [ %59, %58 ]
  %47 = getelementptr inbounds i32, ptr %43, i64 %46
  %48 = load i32, ptr %47, align 4, !tbaa !13
  %49 = icmp ult i32 %48, 1024
  br i1 %49, label %50, label %58

50:                                               ; preds = %45
  %51 = zext nneg i32 %48 to i64
  %52 = and i64 %51, 63
  %53 = shl nuw i64 1, %52
  %54 = lshr i64 %51, 6
  %55 = getelementptr inbounds i64, ptr %5, i64 %54
  %56 = load i64, ptr %55, align 8, !tbaa !49
  %57 = or i64 %56, %53
  store i64 %57, ptr %55, align 8, !tbaa !49
  br label %58

58:                                               ; preds = %45, %50
  %59 = add nuw nsw i64 %46, 1
  %60 = icmp eq i64 %59, %44
  br i1 %60, label %61, label %45, !llvm.loop !70

61:                                               ; preds = %58, %38, %30, %23
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %6) #16
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %7) #16
  %62 = call i32 @sigfillset(ptr noundef nonnull %6) #20
  br label %70

63:                                               ; preds = %70
  call void @llvm.lifetime.start.p0(i64 56, ptr nonnull %8) #16
  %64 = call i32 @pthread_attr_init(ptr noundef nonnull %8) #20
  %65 = call i32 @pthread_attr_setdetachstate(ptr noundef nonnull %8, i32 noundef 1) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #16
  %66 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %6, ptr noundef nonnull %7) #20
  %67 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #20
  %68 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #20
  %69 = icmp eq i32 %68, 22
  br i1 %69, label %77, label %81

70:                                               ; preds = %61, %70
  %71 = phi i64 [ 0, %61 ], [ %75, %70 ]
  %72 = getelementptr inbounds [6 x i32], ptr @__const.start_thread.own, i64 0, i64 %71
  %73 = load i32, ptr %72, align 4, !tbaa !13
  %74 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef %73) #20
  %75 = add nuw nsw i64 %71, 1
  %76 = icmp eq i64 %75, 6
  br i1 %76, label %63, label %70, !llvm.loop !71

77:                                               ; preds = %63
  %78 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %5) #20
  %79 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #20
  %80 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #20
  br label %81

81:                                               ; preds = %77, %63
  %82 = phi i32 [ %80, %77 ], [ %68, %63 ]
  %83 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %7, ptr noundef null) #20
  %84 = call i32 @pthread_attr_destroy(ptr noundef nonnull %8) #20
  %85 = icmp eq i32 %82, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #16
  call void @llvm.lifetime.end.p0(i64 56, ptr nonnull %8) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %7) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %6) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #16
  ret i1 %85
}

; Function Attrs: noreturn nounwind optsize
define internal noalias noundef nonnull ptr @run_worker(ptr noundef %0) #14 {
  %2 = alloca %struct.timespec, align 8
  %3 = getelementptr inbounds i8, ptr %0, i64 8
  %4 = load ptr, ptr %3, align 8, !tbaa !65
  tail call fastcc void @become_helper(ptr noundef %4, ptr noundef nonnull @.str) #24
  %5 = getelementptr inbounds i8, ptr %2, i64 8
  br label %6

6:                                                ; preds = %70, %1
  %7 = phi i32 [ 0, %1 ], [ %71, %70 ]
  %8 = phi i64 [ 0, %1 ], [ %72, %70 ]
  %9 = phi i64 [ 100000, %1 ], [ %73, %70 ]
  %10 = load atomic i64, ptr %0 acquire, align 128
  %11 = icmp ugt i64 %10, 2
  br i1 %11, label %12, label %37

12:                                               ; preds = %6
  %13 = cmpxchg ptr %0, i64 %10, i64 2 seq_cst seq_cst, align 128
  %14 = extractvalue { i64, i1 } %13, 1
  br i1 %14, label %15, label %70

15:                                               ; preds = %12
  %16 = and i64 %10, 281474976710655
  %17 = inttoptr i64 %16 to ptr
  %18 = getelementptr inbounds i8, ptr %17, i64 36
  %19 = load i32, ptr %18, align 4, !tbaa !36
  %20 = sext i32 %19 to i64
  %21 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %20
  %22 = load i64, ptr %21, align 8, !tbaa !49
  %23 = lshr i64 %10, 48
  %24 = trunc nuw nsw i64 %23 to i32
  call fastcc void @run_task(ptr noundef %17, i32 noundef %24) #24
  %25 = call fastcc i32 @take_loose(ptr noundef %17) #24
  %26 = icmp sgt i32 %25, -1
  br i1 %26, label %33, label %27

27:                                               ; preds = %33, %15
  store atomic i64 0, ptr %0 release, align 128
  %28 = getelementptr inbounds i8, ptr %17, i64 32
  %29 = atomicrmw sub ptr %28, i32 1 seq_cst, align 8
  %30 = icmp eq i32 %29, -2147483647
  br i1 %30, label %31, label %70

31:                                               ; preds = %27
  %32 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %28, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %70

33:                                               ; preds = %15, %33
  %34 = phi i32 [ %35, %33 ], [ %25, %15 ]
  call fastcc void @run_task(ptr noundef %17, i32 noundef %34) #24
  %35 = call fastcc i32 @take_loose(ptr noundef %17) #24
  %36 = icmp sgt i32 %35, -1
  br i1 %36, label %33, label %27, !llvm.loop !72

37:                                               ; preds = %6
  %38 = icmp eq i64 %9, 0
  br i1 %38, label %62, label %39

39:                                               ; preds = %37
  call void @llvm.x86.sse2.pause()
  %40 = add i32 %7, 1
  %41 = and i32 %40, 15
  %42 = icmp eq i32 %41, 0
  br i1 %42, label %43, label %70

43:                                               ; preds = %39
  %44 = icmp eq i64 %9, 9223372036854775807
  br i1 %44, label %45, label %52

45:                                               ; preds = %43
  %46 = icmp ugt i32 %40, 1024
  br i1 %46, label %47, label %49

47:                                               ; preds = %45
  %48 = call i32 @sched_yield() #20
  br label %49

49:                                               ; preds = %47, %45
  %50 = load atomic i32, ptr @always_users monotonic, align 4
  %51 = icmp sgt i32 %50, 0
  br i1 %51, label %70, label %62

52:                                               ; preds = %43
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #16
  %53 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #20
  %54 = load i64, ptr %2, align 8, !tbaa !51
  %55 = mul nsw i64 %54, 1000000000
  %56 = load i64, ptr %5, align 8, !tbaa !53
  %57 = add nsw i64 %55, %56
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #16
  %58 = icmp eq i64 %8, 0
  %59 = add nsw i64 %57, %9
  %60 = select i1 %58, i64 %59, i64 %8
  %61 = icmp slt i64 %57, %60
  br i1 %61, label %70, label %62

62:                                               ; preds = %37, %49, %52
  %63 = phi i64 [ %60, %52 ], [ %8, %49 ], [ %8, %37 ]
  %64 = phi i32 [ %40, %52 ], [ %40, %49 ], [ %7, %37 ]
  %65 = cmpxchg ptr %0, i64 %10, i64 1 seq_cst seq_cst, align 128
  %66 = extractvalue { i64, i1 } %65, 1
  br i1 %66, label %67, label %70

67:                                               ; preds = %62
  %68 = load atomic i64, ptr %0 seq_cst, align 128
  %69 = icmp eq i64 %68, 1
  br i1 %69, label %74, label %70

70:                                               ; preds = %74, %67, %39, %49, %31, %27, %52, %62, %12
  %71 = phi i32 [ %7, %12 ], [ %40, %52 ], [ %64, %62 ], [ 0, %27 ], [ 0, %31 ], [ %40, %49 ], [ %40, %39 ], [ %64, %67 ], [ %64, %74 ]
  %72 = phi i64 [ %8, %12 ], [ %60, %52 ], [ %63, %62 ], [ 0, %27 ], [ 0, %31 ], [ %8, %49 ], [ %8, %39 ], [ %63, %67 ], [ %63, %74 ]
  %73 = phi i64 [ %9, %12 ], [ %9, %52 ], [ %9, %62 ], [ %22, %27 ], [ %22, %31 ], [ 9223372036854775807, %49 ], [ %9, %39 ], [ %9, %67 ], [ %9, %74 ]
  br label %6

74:                                               ; preds = %67, %74
  %75 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %0, i32 noundef 1, i64 noundef 0) #24
  %76 = load atomic i64, ptr %0 seq_cst, align 128
  %77 = icmp eq i64 %76, 1
  br i1 %77, label %74, label %70, !llvm.loop !73
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
define internal fastcc void @become_helper(ptr noundef %0, ptr noundef %1) unnamed_addr #2 {
  %3 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #21
  %4 = icmp eq ptr %3, null
  br i1 %4, label %10, label %5

5:                                                ; preds = %2
  store ptr %0, ptr %3, align 8, !tbaa !24
  %6 = getelementptr inbounds i8, ptr %3, i64 8
  store i32 1, ptr %6, align 8, !tbaa !26
  %7 = getelementptr inbounds i8, ptr %3, i64 12
  store i32 2, ptr %7, align 4, !tbaa !27
  %8 = load i32, ptr @state_key, align 4, !tbaa !13
  %9 = tail call i32 @pthread_setspecific(i32 noundef %8, ptr noundef nonnull %3) #20
  br label %10

10:                                               ; preds = %5, %2
  %11 = tail call i64 @pthread_self() #26
  %12 = tail call i32 @pthread_setname_np(i64 noundef %11, ptr noundef %1) #20
  ret void
}

; Function Attrs: nounwind optsize
define internal fastcc zeroext i1 @futex_wait(ptr noundef %0, i32 noundef %1, i64 noundef %2) unnamed_addr #2 {
  %4 = alloca %struct.timespec, align 8
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #16
  %5 = udiv i64 %2, 1000000000
  store i64 %5, ptr %4, align 8, !tbaa !51
  %6 = getelementptr inbounds i8, ptr %4, i64 8
  %7 = urem i64 %2, 1000000000
  store i64 %7, ptr %6, align 8, !tbaa !53
  %8 = icmp eq i64 %2, 0
  %9 = select i1 %8, ptr null, ptr %4
  %10 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef %0, i32 noundef 128, i32 noundef %1, ptr noundef %9, ptr noundef null, i32 noundef 0) #20
  %11 = icmp eq i64 %10, 0
  br i1 %11, label %16, label %12

12:                                               ; preds = %3
  %13 = tail call ptr @__errno_location() #26
  %14 = load i32, ptr %13, align 4, !tbaa !13
  %15 = icmp ne i32 %14, 110
  br label %16

16:                                               ; preds = %12, %3
  %17 = phi i1 [ true, %3 ], [ %15, %12 ]
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #16
  ret i1 %17
}

; Function Attrs: nounwind optsize
declare i32 @pthread_setname_np(i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare i64 @pthread_self() local_unnamed_addr #15

; Function Attrs: nounwind optsize
declare i64 @syscall(i64 noundef, ...) local_unnamed_addr #5

; Function Attrs: nounwind
declare void @llvm.x86.sse2.pause() #16

; Function Attrs: nounwind optsize
declare i32 @sched_yield() local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare ptr @__errno_location() local_unnamed_addr #15

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.cttz.i64(i64, i1 immarg) #17

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @begin_all(ptr noundef %0) unnamed_addr #12 {
  %2 = getelementptr inbounds i8, ptr %0, i64 32
  br label %3

3:                                                ; preds = %6, %1
  %4 = tail call fastcc i32 @take_loose(ptr noundef %0) #24
  %5 = icmp sgt i32 %4, -1
  br i1 %5, label %6, label %18

6:                                                ; preds = %3
  %7 = atomicrmw add ptr %2, i32 1 seq_cst, align 8
  %8 = tail call fastcc zeroext i1 @give_to_extra(ptr noundef %0, i32 noundef %4) #23
  br i1 %8, label %3, label %9, !llvm.loop !74

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
  %43 = tail call fastcc zeroext i1 @give_to_extra(ptr noundef nonnull %0, i32 noundef %42) #23
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
  br i1 %53, label %59, label %27, !llvm.loop !75

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
  %6 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %5) #20
  %7 = getelementptr inbounds i8, ptr %4, i64 72
  %8 = load ptr, ptr %7, align 8, !tbaa !60
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %14

10:                                               ; preds = %2
  %11 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #20
  %12 = tail call noalias dereferenceable_or_null(40) ptr @calloc(i64 noundef 1, i64 noundef 40) #21
  %13 = icmp eq ptr %12, null
  br i1 %13, label %29, label %22

14:                                               ; preds = %2
  %15 = load ptr, ptr %8, align 8, !tbaa !76
  store ptr %15, ptr %7, align 8, !tbaa !60
  %16 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #20
  %17 = getelementptr inbounds i8, ptr %8, i64 32
  store ptr %4, ptr %17, align 8, !tbaa !78
  %18 = getelementptr inbounds i8, ptr %8, i64 16
  store ptr %0, ptr %18, align 8, !tbaa !79
  %19 = getelementptr inbounds i8, ptr %8, i64 24
  store i32 %1, ptr %19, align 8, !tbaa !80
  %20 = getelementptr inbounds i8, ptr %8, i64 8
  store atomic i32 1, ptr %20 seq_cst, align 8
  %21 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %20, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %29

22:                                               ; preds = %10
  %23 = getelementptr inbounds i8, ptr %12, i64 32
  store ptr %4, ptr %23, align 8, !tbaa !78
  %24 = getelementptr inbounds i8, ptr %12, i64 16
  store ptr %0, ptr %24, align 8, !tbaa !79
  %25 = getelementptr inbounds i8, ptr %12, i64 24
  store i32 %1, ptr %25, align 8, !tbaa !80
  %26 = getelementptr inbounds i8, ptr %12, i64 8
  store atomic i32 1, ptr %26 seq_cst, align 8
  %27 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %4, i32 noundef -1, ptr noundef nonnull @run_extra, ptr noundef nonnull %12) #23
  br i1 %27, label %29, label %28

28:                                               ; preds = %22
  tail call void @free(ptr noundef nonnull %12) #20
  br label %29

29:                                               ; preds = %14, %22, %10, %28
  %30 = phi i1 [ false, %28 ], [ false, %10 ], [ true, %22 ], [ true, %14 ]
  ret i1 %30
}

; Function Attrs: nounwind optsize
define internal noalias noundef ptr @run_extra(ptr noundef %0) #2 {
  %2 = getelementptr inbounds i8, ptr %0, i64 32
  %3 = load ptr, ptr %2, align 8, !tbaa !78
  tail call fastcc void @become_helper(ptr noundef %3, ptr noundef nonnull @.str.1) #24
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = getelementptr inbounds i8, ptr %0, i64 24
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = getelementptr inbounds i8, ptr %3, i64 8
  %8 = getelementptr inbounds i8, ptr %3, i64 72
  br label %9

9:                                                ; preds = %24, %1
  %10 = load ptr, ptr %4, align 8, !tbaa !79
  %11 = load i32, ptr %5, align 8, !tbaa !80
  tail call fastcc void @run_task(ptr noundef %10, i32 noundef %11) #24
  %12 = load ptr, ptr %4, align 8, !tbaa !79
  store atomic i32 0, ptr %6 seq_cst, align 8
  %13 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #20
  %14 = load ptr, ptr %8, align 8, !tbaa !60
  store ptr %14, ptr %0, align 8, !tbaa !76
  store ptr %0, ptr %8, align 8, !tbaa !60
  %15 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #20
  %16 = getelementptr inbounds i8, ptr %12, i64 32
  %17 = atomicrmw sub ptr %16, i32 1 seq_cst, align 8
  %18 = icmp eq i32 %17, -2147483647
  br i1 %18, label %19, label %21

19:                                               ; preds = %9
  %20 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %16, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %21

21:                                               ; preds = %9, %19
  %22 = load atomic i32, ptr %6 seq_cst, align 8
  %23 = icmp eq i32 %22, 0
  br i1 %23, label %25, label %24

24:                                               ; preds = %27, %21
  br label %9

25:                                               ; preds = %21, %27
  %26 = tail call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %6, i32 noundef 0, i64 noundef 1000000000) #24
  br i1 %26, label %27, label %30

27:                                               ; preds = %25, %39
  %28 = load atomic i32, ptr %6 seq_cst, align 8
  %29 = icmp eq i32 %28, 0
  br i1 %29, label %25, label %24, !llvm.loop !81

30:                                               ; preds = %25
  %31 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #20
  br label %32

32:                                               ; preds = %32, %30
  %33 = phi ptr [ %8, %30 ], [ %34, %32 ]
  %34 = load ptr, ptr %33, align 8, !tbaa !10
  %35 = icmp eq ptr %34, null
  %36 = icmp eq ptr %34, %0
  %37 = or i1 %35, %36
  br i1 %37, label %38, label %32, !llvm.loop !82

38:                                               ; preds = %32
  br i1 %35, label %39, label %41

39:                                               ; preds = %38
  %40 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #20
  br label %27

41:                                               ; preds = %38
  %42 = load ptr, ptr %0, align 8, !tbaa !76
  store ptr %42, ptr %33, align 8, !tbaa !10
  %43 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #20
  tail call void @free(ptr noundef %0) #20
  ret ptr null
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #18

; Function Attrs: nofree nounwind willreturn memory(argmem: read)
declare i32 @bcmp(ptr nocapture, ptr nocapture, i64) local_unnamed_addr #19

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.umin.i32(i32, i32) #18

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
attributes #15 = { mustprogress nofree nosync nounwind optsize willreturn memory(none) "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cmov,+cx8,+fxsr,+mmx,+sse,+sse2,+x87" }
attributes #16 = { nounwind }
attributes #17 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #18 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #19 = { nofree nounwind willreturn memory(argmem: read) }
attributes #20 = { nounwind optsize }
attributes #21 = { nounwind optsize allocsize(0,1) }
attributes #22 = { nounwind optsize allocsize(0) }
attributes #23 = { cold optsize }
attributes #24 = { optsize }
attributes #25 = { nounwind optsize allocsize(1) }
attributes #26 = { nounwind optsize willreturn memory(none) }

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
!49 = !{!7, !7, i64 0}
!50 = distinct !{!50, !22}
!51 = !{!52, !7, i64 0}
!52 = !{!"timespec", !7, i64 0, !7, i64 8}
!53 = !{!52, !7, i64 8}
!54 = !{!29, !11, i64 32}
!55 = !{!29, !11, i64 40}
!56 = !{!29, !11, i64 8}
!57 = distinct !{!57, !22}
!58 = !{!29, !11, i64 16}
!59 = !{!29, !11, i64 48}
!60 = !{!15, !11, i64 72}
!61 = distinct !{!61, !22}
!62 = !{!29, !11, i64 24}
!63 = distinct !{!63, !22}
!64 = distinct !{!64, !22}
!65 = !{!66, !11, i64 8}
!66 = !{!"", !5, i64 0, !11, i64 8, !4, i64 16}
!67 = !{!66, !4, i64 16}
!68 = distinct !{!68, !22}
!69 = distinct !{!69, !22}
!70 = distinct !{!70, !22}
!71 = distinct !{!71, !22}
!72 = distinct !{!72, !22}
!73 = distinct !{!73, !22}
!74 = distinct !{!74, !22}
!75 = distinct !{!75, !22}
!76 = !{!77, !11, i64 0}
!77 = !{!"Extra", !11, i64 0, !5, i64 8, !11, i64 16, !4, i64 24, !11, i64 32}
!78 = !{!77, !11, i64 32}
!79 = !{!77, !11, i64 16}
!80 = !{!77, !4, i64 24}
!81 = distinct !{!81, !22}
!82 = distinct !{!82, !22}
