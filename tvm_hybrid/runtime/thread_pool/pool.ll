; Made by `python -m tools.thread_pool_code` of pool.c and its headers, sha256 a333fe1085fff6bc6a06b61bf3bf6468e9d4268cf1d45f04bad2f85946e9db9f
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
  br label %100

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
  %24 = load i8, ptr %23, align 4, !tbaa !14, !range !18, !noundef !19
  %25 = icmp eq i8 %24, %14
  %26 = and i1 %13, %25
  br i1 %26, label %27, label %36

27:                                               ; preds = %21
  %28 = getelementptr inbounds i8, ptr %22, i64 56
  %29 = load i32, ptr %28, align 8, !tbaa !20
  %30 = icmp eq i32 %29, %4
  br i1 %30, label %31, label %37

31:                                               ; preds = %27
  %32 = getelementptr inbounds i8, ptr %22, i64 64
  %33 = load ptr, ptr %32, align 8, !tbaa !21
  %34 = tail call i32 @bcmp(ptr %33, ptr readonly %3, i64 %20)
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %80, label %37

36:                                               ; preds = %21
  br i1 %25, label %80, label %37

37:                                               ; preds = %36, %31, %27
  %38 = load ptr, ptr %22, align 8, !tbaa !10
  %39 = icmp eq ptr %38, null
  br i1 %39, label %40, label %21, !llvm.loop !22

40:                                               ; preds = %37, %12
  %41 = tail call noalias dereferenceable_or_null(67792) ptr @calloc(i64 noundef 1, i64 noundef 67792) #21
  %42 = icmp eq ptr %41, null
  br i1 %42, label %80, label %43

43:                                               ; preds = %40
  %44 = add nsw i32 %4, 1
  %45 = sext i32 %44 to i64
  %46 = shl nsw i64 %45, 2
  %47 = tail call noalias ptr @malloc(i64 noundef %46) #22
  %48 = getelementptr inbounds i8, ptr %41, i64 64
  store ptr %47, ptr %48, align 8, !tbaa !21
  %49 = getelementptr inbounds i8, ptr %41, i64 8
  %50 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %49, ptr noundef null) #20
  %51 = getelementptr inbounds i8, ptr %41, i64 52
  store i8 %14, ptr %51, align 4, !tbaa !14
  %52 = load ptr, ptr %48, align 8, !tbaa !21
  %53 = icmp eq ptr %52, null
  br i1 %53, label %78, label %54

54:                                               ; preds = %43
  %55 = sext i32 %4 to i64
  %56 = shl nsw i64 %55, 2
  tail call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 4 %52, ptr readonly align 4 %3, i64 %56, i1 false)
  %57 = getelementptr inbounds i8, ptr %41, i64 56
  store i32 %4, ptr %57, align 8, !tbaa !20
  %58 = icmp sgt i32 %4, 0
  br i1 %58, label %59, label %78

59:                                               ; preds = %54
  %60 = getelementptr inbounds i8, ptr %41, i64 72
  %61 = zext nneg i32 %4 to i64
  br label %62

62:                                               ; preds = %75, %59
  %63 = phi i64 [ 0, %59 ], [ %76, %75 ]
  %64 = getelementptr inbounds i32, ptr %3, i64 %63
  %65 = load i32, ptr %64, align 4, !tbaa !13
  %66 = icmp ult i32 %65, 1024
  br i1 %66, label %67, label %75

67:                                               ; preds = %62
  %68 = zext nneg i32 %65 to i64
  %69 = and i64 %68, 63
  %70 = shl nuw i64 1, %69
  %71 = lshr i64 %68, 6
  %72 = getelementptr inbounds i64, ptr %60, i64 %71
  %73 = load i64, ptr %72, align 8, !tbaa !24
  %74 = or i64 %73, %70
  store i64 %74, ptr %72, align 8, !tbaa !24
  br label %75

75:                                               ; preds = %67, %62
  %76 = add nuw nsw i64 %63, 1
  %77 = icmp eq i64 %76, %61
  br i1 %77, label %78, label %62, !llvm.loop !25

78:                                               ; preds = %75, %54, %43
  %79 = load ptr, ptr @pools, align 8, !tbaa !10
  store ptr %79, ptr %41, align 8, !tbaa !26
  store ptr %41, ptr @pools, align 8, !tbaa !10
  br label %80

80:                                               ; preds = %31, %36, %40, %78
  %81 = phi ptr [ %41, %78 ], [ null, %40 ], [ %22, %36 ], [ %22, %31 ]
  %82 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @pools_lock) #20
  %83 = icmp eq ptr %7, null
  %84 = icmp ne ptr %81, null
  %85 = and i1 %83, %84
  br i1 %85, label %86, label %92

86:                                               ; preds = %80
  %87 = tail call noalias dereferenceable_or_null(24) ptr @calloc(i64 noundef 1, i64 noundef 24) #21
  %88 = icmp eq ptr %87, null
  br i1 %88, label %100, label %89

89:                                               ; preds = %86
  %90 = load i32, ptr @state_key, align 4, !tbaa !13
  %91 = tail call i32 @pthread_setspecific(i32 noundef %90, ptr noundef nonnull %87) #20
  br label %92

92:                                               ; preds = %89, %80
  %93 = phi ptr [ %87, %89 ], [ %7, %80 ]
  %94 = icmp ne ptr %93, null
  %95 = and i1 %84, %94
  br i1 %95, label %96, label %100

96:                                               ; preds = %92
  store ptr %81, ptr %93, align 8, !tbaa !27
  %97 = tail call i32 @llvm.smin.i32(i32 %0, i32 8192)
  %98 = getelementptr inbounds i8, ptr %93, i64 8
  store i32 %97, ptr %98, align 8, !tbaa !29
  %99 = getelementptr inbounds i8, ptr %93, i64 12
  store i32 %1, ptr %99, align 4, !tbaa !30
  br label %100

100:                                              ; preds = %86, %96, %92, %9
  %101 = phi i32 [ 0, %9 ], [ 0, %96 ], [ 12, %92 ], [ 12, %86 ]
  ret i32 %101
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
  %10 = load ptr, ptr @tvm, align 8, !tbaa !31
  %11 = tail call i32 %10(ptr noundef %0, ptr noundef %1, i32 noundef %2) #20
  br label %332

12:                                               ; preds = %3
  %13 = icmp sgt i32 %2, 0
  br i1 %13, label %17, label %14

14:                                               ; preds = %12
  %15 = getelementptr inbounds i8, ptr %7, i64 8
  %16 = load i32, ptr %15, align 8, !tbaa !29
  br label %17

17:                                               ; preds = %12, %14
  %18 = phi i32 [ %16, %14 ], [ %2, %12 ]
  call void @llvm.lifetime.start.p0(i64 104, ptr nonnull %5) #16
  store ptr %5, ptr %5, align 64, !tbaa !33
  %19 = getelementptr inbounds i8, ptr %5, i64 8
  store i32 %18, ptr %19, align 8, !tbaa !35
  %20 = getelementptr inbounds i8, ptr %5, i64 16
  store ptr %0, ptr %20, align 16, !tbaa !36
  %21 = getelementptr inbounds i8, ptr %5, i64 24
  store ptr %1, ptr %21, align 8, !tbaa !38
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
  %32 = load i32, ptr %30, align 4, !tbaa !30
  store i32 %32, ptr %23, align 4, !tbaa !39
  %33 = load ptr, ptr %7, align 8, !tbaa !27
  store ptr %33, ptr %24, align 8, !tbaa !40
  %34 = icmp sgt i32 %18, 1
  %35 = add nuw nsw i32 %18, 63
  %36 = lshr i32 %35, 6
  %37 = select i1 %34, i32 %36, i32 0
  store i32 %37, ptr %27, align 4, !tbaa !41
  store ptr %29, ptr %28, align 64, !tbaa !42
  %38 = icmp ugt i32 %37, 2
  br i1 %38, label %39, label %46

39:                                               ; preds = %17
  %40 = zext nneg i32 %37 to i64
  %41 = call noalias ptr @calloc(i64 noundef %40, i64 noundef 8) #21
  store ptr %41, ptr %28, align 64, !tbaa !42
  %42 = icmp eq ptr %41, null
  br i1 %42, label %43, label %46

43:                                               ; preds = %39
  %44 = load ptr, ptr @tvm, align 8, !tbaa !31
  %45 = call i32 %44(ptr noundef %0, ptr noundef %1, i32 noundef %18) #20
  br label %330

46:                                               ; preds = %39, %17
  %47 = getelementptr inbounds i8, ptr %7, i64 16
  %48 = load i32, ptr %47, align 8, !tbaa !43
  %49 = icmp eq i32 %48, 0
  br i1 %49, label %52, label %50

50:                                               ; preds = %46
  %51 = add nsw i32 %48, 1
  store i32 %51, ptr %47, align 8, !tbaa !43
  br label %58

52:                                               ; preds = %46
  %53 = getelementptr inbounds i8, ptr %7, i64 8
  %54 = load i32, ptr %53, align 8, !tbaa !29
  %55 = add nsw i32 %54, -1
  %56 = icmp sgt i32 %54, 1
  %57 = select i1 %34, i1 %56, i1 false
  store i32 1, ptr %47, align 8, !tbaa !43
  br i1 %57, label %60, label %58

58:                                               ; preds = %52, %50
  %59 = phi i32 [ 0, %50 ], [ %55, %52 ]
  br i1 %34, label %149, label %161

60:                                               ; preds = %52
  %61 = add nsw i32 %18, -1
  store i32 %61, ptr %22, align 32, !tbaa !44
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
  %70 = getelementptr inbounds i8, ptr %33, i64 2256
  %71 = ptrtoint ptr %5 to i64
  %72 = sext i32 %69 to i64
  %73 = zext nneg i32 %18 to i64
  br label %74

74:                                               ; preds = %139, %68
  %75 = phi i64 [ 1, %68 ], [ %142, %139 ]
  %76 = phi i32 [ %61, %68 ], [ %140, %139 ]
  %77 = phi i32 [ 0, %68 ], [ %141, %139 ]
  %78 = icmp sge i32 %77, %55
  %79 = icmp sgt i64 %75, %72
  %80 = select i1 %78, i1 true, i1 %79
  br i1 %80, label %99, label %81

81:                                               ; preds = %74
  %82 = add nsw i64 %75, -1
  %83 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %82
  %84 = load ptr, ptr %83, align 8, !tbaa !10
  %85 = load atomic i64, ptr %84 monotonic, align 128
  %86 = shl i64 %75, 48
  %87 = or i64 %86, %71
  br label %88

88:                                               ; preds = %91, %81
  %89 = phi i64 [ %85, %81 ], [ %96, %91 ]
  %90 = icmp ult i64 %89, 2
  br i1 %90, label %91, label %99

91:                                               ; preds = %88
  %92 = icmp eq i64 %89, 1
  %93 = select i1 %92, i64 2, i64 %87
  %94 = cmpxchg weak ptr %84, i64 %89, i64 %93 seq_cst seq_cst, align 128
  %95 = extractvalue { i64, i1 } %94, 1
  %96 = extractvalue { i64, i1 } %94, 0
  br i1 %95, label %97, label %88, !llvm.loop !45

97:                                               ; preds = %91
  br i1 %92, label %98, label %127

98:                                               ; preds = %97
  call fastcc void @wake(ptr noundef nonnull %84, i64 noundef %87) #23
  br label %127

99:                                               ; preds = %88, %74
  %100 = icmp sge i32 %76, %69
  %101 = select i1 %78, i1 true, i1 %100
  br i1 %101, label %130, label %102

102:                                              ; preds = %99
  %103 = shl i64 %75, 48
  %104 = or i64 %103, %71
  %105 = sext i32 %76 to i64
  br label %106

106:                                              ; preds = %125, %102
  %107 = phi i64 [ %105, %102 ], [ %108, %125 ]
  %108 = add nsw i64 %107, 1
  %109 = getelementptr inbounds [8192 x ptr], ptr %70, i64 0, i64 %107
  %110 = load ptr, ptr %109, align 8, !tbaa !10
  %111 = load atomic i64, ptr %110 monotonic, align 128
  br label %112

112:                                              ; preds = %115, %106
  %113 = phi i64 [ %111, %106 ], [ %120, %115 ]
  %114 = icmp ult i64 %113, 2
  br i1 %114, label %115, label %125

115:                                              ; preds = %112
  %116 = icmp eq i64 %113, 1
  %117 = select i1 %116, i64 2, i64 %104
  %118 = cmpxchg weak ptr %110, i64 %113, i64 %117 seq_cst seq_cst, align 128
  %119 = extractvalue { i64, i1 } %118, 1
  %120 = extractvalue { i64, i1 } %118, 0
  br i1 %119, label %121, label %112, !llvm.loop !45

121:                                              ; preds = %115
  br i1 %116, label %122, label %123

122:                                              ; preds = %121
  call fastcc void @wake(ptr noundef nonnull %110, i64 noundef %104) #23
  br label %123

123:                                              ; preds = %122, %121
  %124 = trunc nsw i64 %108 to i32
  br label %127

125:                                              ; preds = %112
  %126 = icmp eq i64 %108, %72
  br i1 %126, label %130, label %106, !llvm.loop !46

127:                                              ; preds = %123, %98, %97
  %128 = phi i32 [ %124, %123 ], [ %76, %98 ], [ %76, %97 ]
  %129 = add nsw i32 %77, 1
  br label %139

130:                                              ; preds = %125, %99
  %131 = phi i32 [ %76, %99 ], [ %69, %125 ]
  %132 = load ptr, ptr %28, align 64, !tbaa !42
  %133 = lshr i64 %75, 6
  %134 = and i64 %133, 67108863
  %135 = getelementptr inbounds i64, ptr %132, i64 %134
  %136 = and i64 %75, 63
  %137 = shl nuw i64 1, %136
  %138 = atomicrmw or ptr %135, i64 %137 seq_cst, align 8
  br label %139

139:                                              ; preds = %130, %127
  %140 = phi i32 [ %128, %127 ], [ %131, %130 ]
  %141 = phi i32 [ %129, %127 ], [ %77, %130 ]
  %142 = add nuw nsw i64 %75, 1
  %143 = icmp eq i64 %142, %73
  br i1 %143, label %144, label %74, !llvm.loop !47

144:                                              ; preds = %139
  %145 = icmp eq i32 %61, %141
  br i1 %145, label %161, label %146

146:                                              ; preds = %144
  %147 = sub nsw i32 %61, %141
  %148 = atomicrmw sub ptr %22, i32 %147 seq_cst, align 32
  br label %161

149:                                              ; preds = %58, %149
  %150 = phi i32 [ %159, %149 ], [ 1, %58 ]
  %151 = load ptr, ptr %28, align 64, !tbaa !42
  %152 = lshr i32 %150, 6
  %153 = zext nneg i32 %152 to i64
  %154 = getelementptr inbounds i64, ptr %151, i64 %153
  %155 = and i32 %150, 63
  %156 = zext nneg i32 %155 to i64
  %157 = shl nuw i64 1, %156
  %158 = atomicrmw or ptr %154, i64 %157 seq_cst, align 8
  %159 = add nuw nsw i32 %150, 1
  %160 = icmp eq i32 %159, %18
  br i1 %160, label %161, label %149, !llvm.loop !48

161:                                              ; preds = %149, %146, %144, %58
  %162 = phi i1 [ false, %58 ], [ true, %144 ], [ true, %146 ], [ false, %149 ]
  %163 = phi i32 [ %59, %58 ], [ %55, %144 ], [ %55, %146 ], [ %59, %149 ]
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef 0) #24
  %164 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #24
  %165 = icmp sgt i32 %164, -1
  br i1 %165, label %166, label %168

166:                                              ; preds = %161
  %167 = ptrtoint ptr %5 to i64
  br label %169

168:                                              ; preds = %230, %161
  br i1 %162, label %233, label %264

169:                                              ; preds = %230, %166
  %170 = phi i32 [ %164, %166 ], [ %231, %230 ]
  br i1 %162, label %171, label %229

171:                                              ; preds = %169
  %172 = load atomic i32, ptr %22 seq_cst, align 32
  %173 = icmp ult i32 %172, %163
  br i1 %173, label %174, label %229

174:                                              ; preds = %171
  %175 = load i32, ptr %27, align 4, !tbaa !41
  %176 = icmp sgt i32 %175, 0
  br i1 %176, label %177, label %229

177:                                              ; preds = %174
  %178 = load ptr, ptr %28, align 64, !tbaa !42
  %179 = zext nneg i32 %175 to i64
  %180 = load atomic i64, ptr %178 monotonic, align 8
  %181 = icmp eq i64 %180, 0
  br i1 %181, label %182, label %192

182:                                              ; preds = %177, %186
  %183 = phi i64 [ %184, %186 ], [ 0, %177 ]
  %184 = add nuw nsw i64 %183, 1
  %185 = icmp eq i64 %184, %179
  br i1 %185, label %229, label %186, !llvm.loop !49

186:                                              ; preds = %182
  %187 = getelementptr inbounds i64, ptr %178, i64 %184
  %188 = load atomic i64, ptr %187 monotonic, align 8
  %189 = icmp eq i64 %188, 0
  br i1 %189, label %182, label %190, !llvm.loop !49

190:                                              ; preds = %186
  %191 = icmp ult i64 %184, %179
  br i1 %191, label %192, label %229

192:                                              ; preds = %190, %177
  %193 = atomicrmw add ptr %22, i32 1 seq_cst, align 32
  %194 = load ptr, ptr %24, align 8, !tbaa !40
  %195 = getelementptr inbounds i8, ptr %194, i64 48
  %196 = load atomic i32, ptr %195 acquire, align 8
  %197 = icmp sgt i32 %196, 0
  br i1 %197, label %198, label %227

198:                                              ; preds = %192
  %199 = getelementptr inbounds i8, ptr %194, i64 2256
  %200 = zext nneg i32 %170 to i64
  %201 = shl i64 %200, 48
  %202 = or i64 %201, %167
  %203 = zext nneg i32 %196 to i64
  br label %204

204:                                              ; preds = %221, %198
  %205 = phi i64 [ 0, %198 ], [ %222, %221 ]
  %206 = phi i1 [ true, %198 ], [ %223, %221 ]
  %207 = getelementptr inbounds [8192 x ptr], ptr %199, i64 0, i64 %205
  %208 = load ptr, ptr %207, align 8, !tbaa !10
  %209 = load atomic i64, ptr %208 monotonic, align 128
  br label %210

210:                                              ; preds = %213, %204
  %211 = phi i64 [ %209, %204 ], [ %218, %213 ]
  %212 = icmp ult i64 %211, 2
  br i1 %212, label %213, label %221

213:                                              ; preds = %210
  %214 = icmp eq i64 %211, 1
  %215 = select i1 %214, i64 2, i64 %202
  %216 = cmpxchg weak ptr %208, i64 %211, i64 %215 seq_cst seq_cst, align 128
  %217 = extractvalue { i64, i1 } %216, 1
  %218 = extractvalue { i64, i1 } %216, 0
  br i1 %217, label %219, label %210, !llvm.loop !45

219:                                              ; preds = %213
  br i1 %214, label %220, label %225

220:                                              ; preds = %219
  call fastcc void @wake(ptr noundef nonnull %208, i64 noundef %202) #23
  br i1 %206, label %230, label %227

221:                                              ; preds = %210
  %222 = add nuw nsw i64 %205, 1
  %223 = icmp ult i64 %222, %203
  %224 = icmp eq i64 %222, %203
  br i1 %224, label %225, label %204, !llvm.loop !50

225:                                              ; preds = %221, %219
  %226 = phi i1 [ %206, %219 ], [ %223, %221 ]
  br i1 %226, label %230, label %227

227:                                              ; preds = %225, %220, %192
  %228 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  br label %229

229:                                              ; preds = %182, %227, %190, %174, %171, %169
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %170) #24
  br label %230

230:                                              ; preds = %229, %225, %220
  %231 = call fastcc i32 @take_loose(ptr noundef nonnull %5) #24
  %232 = icmp sgt i32 %231, -1
  br i1 %232, label %169, label %168, !llvm.loop !51

233:                                              ; preds = %168
  %234 = load atomic i32, ptr %22 acquire, align 32
  %235 = icmp eq i32 %234, 0
  br i1 %235, label %264, label %236

236:                                              ; preds = %233
  %237 = load ptr, ptr %24, align 8, !tbaa !40
  %238 = getelementptr inbounds i8, ptr %237, i64 48
  %239 = load atomic i32, ptr %238 seq_cst, align 8
  %240 = icmp sgt i32 %239, 0
  br i1 %240, label %241, label %264

241:                                              ; preds = %236
  %242 = ptrtoint ptr %5 to i64
  %243 = zext nneg i32 %239 to i64
  br label %244

244:                                              ; preds = %261, %241
  %245 = phi i64 [ 0, %241 ], [ %262, %261 ]
  %246 = load ptr, ptr %24, align 8, !tbaa !40
  %247 = getelementptr inbounds i8, ptr %246, i64 2256
  %248 = getelementptr inbounds [8192 x ptr], ptr %247, i64 0, i64 %245
  %249 = load ptr, ptr %248, align 8, !tbaa !10
  %250 = load atomic i64, ptr %249 seq_cst, align 128
  %251 = and i64 %250, 281474976710655
  %252 = icmp eq i64 %251, %242
  br i1 %252, label %253, label %261

253:                                              ; preds = %244
  %254 = cmpxchg ptr %249, i64 %250, i64 0 seq_cst seq_cst, align 128
  %255 = extractvalue { i64, i1 } %254, 1
  br i1 %255, label %256, label %261

256:                                              ; preds = %253
  %257 = extractvalue { i64, i1 } %254, 0
  %258 = lshr i64 %257, 48
  %259 = trunc nuw nsw i64 %258 to i32
  %260 = atomicrmw sub ptr %22, i32 1 seq_cst, align 32
  call fastcc void @run_task(ptr noundef nonnull %5, i32 noundef %259) #24
  br label %261

261:                                              ; preds = %256, %253, %244
  %262 = add nuw nsw i64 %245, 1
  %263 = icmp eq i64 %262, %243
  br i1 %263, label %264, label %244, !llvm.loop !52

264:                                              ; preds = %261, %236, %233, %168
  %265 = load i32, ptr %23, align 4, !tbaa !39
  %266 = sext i32 %265 to i64
  %267 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %266
  %268 = load i64, ptr %267, align 8, !tbaa !24
  %269 = icmp eq i32 %265, 2
  %270 = icmp eq i32 %265, 1
  %271 = getelementptr inbounds i8, ptr %4, i64 8
  br label %272

272:                                              ; preds = %310, %264
  %273 = phi i64 [ 0, %264 ], [ %311, %310 ]
  %274 = phi i32 [ 0, %264 ], [ %312, %310 ]
  br label %275

275:                                              ; preds = %291, %272
  %276 = phi i32 [ %274, %272 ], [ %280, %291 ]
  %277 = load atomic i32, ptr %22 acquire, align 32
  switch i32 %277, label %278 [
    i32 0, label %313
    i32 -2147483648, label %313
  ]

278:                                              ; preds = %275
  br i1 %269, label %302, label %279

279:                                              ; preds = %278
  call void @llvm.x86.sse2.pause()
  %280 = add i32 %276, 1
  %281 = and i32 %280, 15
  %282 = icmp eq i32 %281, 0
  br i1 %282, label %283, label %291

283:                                              ; preds = %279
  br i1 %270, label %284, label %292

284:                                              ; preds = %283
  %285 = icmp ugt i32 %280, 1024
  br i1 %285, label %286, label %288

286:                                              ; preds = %284
  %287 = call i32 @sched_yield() #20
  br label %288

288:                                              ; preds = %286, %284
  %289 = load atomic i32, ptr @always_users monotonic, align 4
  %290 = icmp sgt i32 %289, 0
  br i1 %290, label %291, label %302

291:                                              ; preds = %288, %279
  br label %275, !llvm.loop !53

292:                                              ; preds = %283
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #16
  %293 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #20
  %294 = load i64, ptr %4, align 8, !tbaa !54
  %295 = mul nsw i64 %294, 1000000000
  %296 = load i64, ptr %271, align 8, !tbaa !56
  %297 = add nsw i64 %295, %296
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #16
  %298 = icmp eq i64 %273, 0
  %299 = add nsw i64 %297, %268
  %300 = select i1 %298, i64 %299, i64 %273
  %301 = icmp slt i64 %297, %300
  br i1 %301, label %310, label %302

302:                                              ; preds = %288, %278, %292
  %303 = phi i32 [ %280, %292 ], [ %274, %278 ], [ %280, %288 ]
  %304 = phi i64 [ %300, %292 ], [ %273, %278 ], [ %273, %288 ]
  %305 = atomicrmw or ptr %22, i32 -2147483648 seq_cst, align 8
  %306 = or i32 %305, -2147483648
  %307 = icmp eq i32 %306, -2147483648
  br i1 %307, label %310, label %308

308:                                              ; preds = %302
  %309 = call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %22, i32 noundef %306, i64 noundef 0) #24
  br label %310

310:                                              ; preds = %308, %302, %292
  %311 = phi i64 [ %300, %292 ], [ %304, %308 ], [ %304, %302 ]
  %312 = phi i32 [ %280, %292 ], [ %303, %308 ], [ %303, %302 ]
  br label %272, !llvm.loop !53

313:                                              ; preds = %275, %275
  %314 = load i32, ptr %47, align 8, !tbaa !43
  %315 = add nsw i32 %314, -1
  store i32 %315, ptr %47, align 8, !tbaa !43
  %316 = load ptr, ptr %28, align 64, !tbaa !42
  %317 = icmp eq ptr %316, %29
  br i1 %317, label %319, label %318

318:                                              ; preds = %313
  call void @free(ptr noundef %316) #20
  br label %319

319:                                              ; preds = %318, %313
  %320 = load atomic i8, ptr %26 seq_cst, align 8
  %321 = trunc i8 %320 to i1
  br i1 %321, label %322, label %330

322:                                              ; preds = %319
  %323 = load atomic i64, ptr %25 seq_cst, align 16
  %324 = icmp eq i64 %323, 0
  br i1 %324, label %330, label %325

325:                                              ; preds = %322
  %326 = inttoptr i64 %323 to ptr
  %327 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 32), align 8, !tbaa !57
  call void %327(ptr noundef nonnull %326) #20
  %328 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !58
  %329 = call i32 %328(ptr noundef nonnull %326) #20
  br label %330

330:                                              ; preds = %43, %319, %322, %325
  %331 = phi i32 [ %45, %43 ], [ 0, %319 ], [ -1, %325 ], [ -1, %322 ]
  call void @llvm.lifetime.end.p0(i64 104, ptr nonnull %5) #16
  br label %332

332:                                              ; preds = %330, %9
  %333 = phi i32 [ %331, %330 ], [ %11, %9 ]
  ret i32 %333
}

; Function Attrs: nounwind optsize
define internal i32 @barrier(i32 noundef %0, ptr noundef %1) #2 {
  %3 = alloca %struct.timespec, align 8
  %4 = load ptr, ptr %1, align 8, !tbaa !33
  %5 = icmp eq ptr %4, %1
  br i1 %5, label %9, label %6

6:                                                ; preds = %2
  %7 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 8), align 8, !tbaa !59
  %8 = tail call i32 %7(i32 noundef %0, ptr noundef nonnull %1) #20
  br label %58

9:                                                ; preds = %2
  %10 = getelementptr inbounds i8, ptr %1, i64 72
  %11 = load atomic i32, ptr %10 seq_cst, align 8
  %12 = getelementptr inbounds i8, ptr %1, i64 76
  %13 = atomicrmw add ptr %12, i32 1 seq_cst, align 4
  %14 = add nsw i32 %13, 1
  %15 = getelementptr inbounds i8, ptr %1, i64 8
  %16 = load i32, ptr %15, align 8, !tbaa !35
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
  br i1 %38, label %39, label %28, !llvm.loop !60

39:                                               ; preds = %35
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #16
  %40 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #20
  %41 = load i64, ptr %3, align 8, !tbaa !54
  %42 = mul nsw i64 %41, 1000000000
  %43 = load i64, ptr %21, align 8, !tbaa !56
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
  br label %50, !llvm.loop !60

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
  %9 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 16), align 8, !tbaa !61
  %10 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 48), align 8, !tbaa !62
  %11 = tail call i32 %9(ptr noundef %10, ptr noundef null, i32 noundef 0, ptr noundef %3) #20
  br label %18

12:                                               ; preds = %4
  store i32 1, ptr %3, align 8, !tbaa !8
  %13 = getelementptr inbounds i8, ptr %3, i64 4
  store i32 0, ptr %13, align 4, !tbaa !9
  %14 = getelementptr inbounds i8, ptr %6, i64 8
  %15 = load i32, ptr %14, align 8, !tbaa !29
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

4:                                                ; preds = %11, %0
  ret void

5:                                                ; preds = %0, %11
  %6 = phi ptr [ %13, %11 ], [ %2, %0 ]
  %7 = getelementptr inbounds i8, ptr %6, i64 8
  %8 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %7, ptr noundef null) #20
  %9 = getelementptr inbounds i8, ptr %6, i64 48
  store atomic i32 0, ptr %9 seq_cst, align 8
  %10 = getelementptr inbounds i8, ptr %6, i64 200
  br label %15

11:                                               ; preds = %15
  %12 = getelementptr inbounds i8, ptr %6, i64 2248
  store ptr null, ptr %12, align 8, !tbaa !63
  %13 = load ptr, ptr %6, align 8, !tbaa !10
  %14 = icmp eq ptr %13, null
  br i1 %14, label %4, label %5, !llvm.loop !64

15:                                               ; preds = %5, %15
  %16 = phi i64 [ 0, %5 ], [ %18, %15 ]
  %17 = getelementptr inbounds [1024 x i16], ptr %10, i64 0, i64 %16
  store atomic i16 0, ptr %17 seq_cst, align 2
  %18 = add nuw nsw i64 %16, 1
  %19 = icmp eq i64 %18, 1024
  br i1 %19, label %11, label %15, !llvm.loop !65
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
  %5 = load ptr, ptr %4, align 8, !tbaa !36
  %6 = getelementptr inbounds i8, ptr %0, i64 24
  %7 = load ptr, ptr %6, align 8, !tbaa !38
  %8 = tail call i32 %5(i32 noundef %1, ptr noundef %0, ptr noundef %7) #20
  %9 = icmp eq i32 %8, 0
  br i1 %9, label %25, label %10

10:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #16
  store ptr null, ptr %3, align 8, !tbaa !10
  %11 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 24), align 8, !tbaa !66
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
  %21 = load ptr, ptr getelementptr inbounds (i8, ptr @tvm, i64 40), align 8, !tbaa !58
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
  %3 = load i32, ptr %2, align 4, !tbaa !41
  %4 = icmp sgt i32 %3, 0
  br i1 %4, label %5, label %36

5:                                                ; preds = %1
  %6 = getelementptr inbounds i8, ptr %0, i64 64
  br label %7

7:                                                ; preds = %5, %25
  %8 = phi i64 [ 0, %5 ], [ %26, %25 ]
  %9 = load ptr, ptr %6, align 8, !tbaa !42
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
  %18 = load ptr, ptr %6, align 8, !tbaa !42
  %19 = getelementptr inbounds i64, ptr %18, i64 %8
  %20 = xor i64 %17, -1
  %21 = atomicrmw and ptr %19, i64 %20 seq_cst, align 8
  %22 = and i64 %21, %17
  %23 = icmp eq i64 %22, 0
  %24 = and i64 %21, %20
  br i1 %23, label %12, label %30, !llvm.loop !67

25:                                               ; preds = %12
  %26 = add nuw nsw i64 %8, 1
  %27 = load i32, ptr %2, align 4, !tbaa !41
  %28 = sext i32 %27 to i64
  %29 = icmp slt i64 %26, %28
  br i1 %29, label %7, label %36, !llvm.loop !68

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
  br i1 %7, label %8, label %35

8:                                                ; preds = %2
  %9 = getelementptr inbounds i8, ptr %0, i64 2256
  %10 = sext i32 %6 to i64
  br label %11

11:                                               ; preds = %8, %31
  %12 = phi i64 [ %10, %8 ], [ %32, %31 ]
  %13 = getelementptr inbounds [8192 x ptr], ptr %9, i64 0, i64 %12
  %14 = load ptr, ptr %13, align 8, !tbaa !10
  %15 = icmp eq ptr %14, null
  br i1 %15, label %18, label %16

16:                                               ; preds = %11
  %17 = trunc nsw i64 %12 to i32
  br label %25

18:                                               ; preds = %11
  %19 = tail call noalias align 128 dereferenceable_or_null(256) ptr @aligned_alloc(i64 noundef 128, i64 noundef 256) #25
  %20 = icmp eq ptr %19, null
  br i1 %20, label %35, label %21

21:                                               ; preds = %18
  %22 = getelementptr inbounds i8, ptr %19, i64 8
  store ptr %0, ptr %22, align 8, !tbaa !69
  %23 = getelementptr inbounds i8, ptr %19, i64 16
  %24 = trunc nsw i64 %12 to i32
  store i32 %24, ptr %23, align 16, !tbaa !71
  store ptr %19, ptr %13, align 8, !tbaa !10
  br label %25

25:                                               ; preds = %16, %21
  %26 = phi i32 [ %17, %16 ], [ %24, %21 ]
  %27 = phi ptr [ %14, %16 ], [ %19, %21 ]
  store i64 0, ptr %27, align 8, !tbaa !44
  %28 = load ptr, ptr %13, align 8, !tbaa !10
  %29 = getelementptr inbounds i8, ptr %28, i64 29
  store i8 0, ptr %29, align 1, !tbaa !72
  %30 = tail call fastcc zeroext i1 @start_thread(ptr noundef nonnull %0, i32 noundef %26, ptr noundef nonnull @run_worker, ptr noundef %28) #23
  br i1 %30, label %31, label %35

31:                                               ; preds = %25
  %32 = add nsw i64 %12, 1
  %33 = trunc i64 %32 to i32
  store atomic i32 %33, ptr %5 seq_cst, align 8
  %34 = icmp eq i32 %33, %1
  br i1 %34, label %35, label %11, !llvm.loop !73

35:                                               ; preds = %31, %25, %18, %2
  %36 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %3) #20
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
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #16
  %10 = getelementptr inbounds i8, ptr %0, i64 72
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %5, ptr noundef nonnull align 8 dereferenceable(128) %10, i64 128, i1 false), !tbaa.struct !74
  %11 = getelementptr inbounds i8, ptr %0, i64 52
  %12 = load i8, ptr %11, align 4, !tbaa !14, !range !18, !noundef !19
  %13 = trunc nuw i8 %12 to i1
  %14 = icmp sgt i32 %1, -1
  %15 = and i1 %14, %13
  br i1 %15, label %16, label %36

16:                                               ; preds = %4
  %17 = add nuw nsw i32 %1, 1
  %18 = getelementptr inbounds i8, ptr %0, i64 56
  %19 = load i32, ptr %18, align 8, !tbaa !20
  %20 = icmp slt i32 %17, %19
  br i1 %20, label %21, label %36

21:                                               ; preds = %16
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %5, i8 0, i64 128, i1 false)
  %22 = getelementptr inbounds i8, ptr %0, i64 64
  %23 = load ptr, ptr %22, align 8, !tbaa !21
  %24 = zext nneg i32 %17 to i64
  %25 = getelementptr inbounds i32, ptr %23, i64 %24
  %26 = load i32, ptr %25, align 4, !tbaa !13
  %27 = icmp ult i32 %26, 1024
  br i1 %27, label %28, label %36

28:                                               ; preds = %21
  %29 = zext nneg i32 %26 to i64
  %30 = and i64 %29, 63
  %31 = shl nuw i64 1, %30
  %32 = lshr i64 %29, 6
  %33 = getelementptr inbounds i64, ptr %5, i64 %32
  %34 = load i64, ptr %33, align 8, !tbaa !24
  %35 = or i64 %34, %31
  store i64 %35, ptr %33, align 8, !tbaa !24
  br label %36

36:                                               ; preds = %28, %21, %16, %4
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %6) #16
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %7) #16
  %37 = call i32 @sigfillset(ptr noundef nonnull %6) #20
  br label %45

38:                                               ; preds = %45
  call void @llvm.lifetime.start.p0(i64 56, ptr nonnull %8) #16
  %39 = call i32 @pthread_attr_init(ptr noundef nonnull %8) #20
  %40 = call i32 @pthread_attr_setdetachstate(ptr noundef nonnull %8, i32 noundef 1) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #16
  %41 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %6, ptr noundef nonnull %7) #20
  %42 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #20
  %43 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #20
  %44 = icmp eq i32 %43, 22
  br i1 %44, label %52, label %56

45:                                               ; preds = %36, %45
  %46 = phi i64 [ 0, %36 ], [ %50, %45 ]
  %47 = getelementptr inbounds [6 x i32], ptr @__const.start_thread.own, i64 0, i64 %46
  %48 = load i32, ptr %47, align 4, !tbaa !13
  %49 = call i32 @sigdelset(ptr noundef nonnull %6, i32 noundef %48) #20
  %50 = add nuw nsw i64 %46, 1
  %51 = icmp eq i64 %50, 6
  br i1 %51, label %38, label %45, !llvm.loop !75

52:                                               ; preds = %38
  %53 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %5) #20
  %54 = call i32 @pthread_attr_setaffinity_np(ptr noundef nonnull %8, i64 noundef 128, ptr noundef nonnull %5) #20
  %55 = call i32 @pthread_create(ptr noundef nonnull %9, ptr noundef nonnull %8, ptr noundef %2, ptr noundef %3) #20
  br label %56

56:                                               ; preds = %52, %38
  %57 = phi i32 [ %55, %52 ], [ %43, %38 ]
  %58 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %7, ptr noundef null) #20
  %59 = call i32 @pthread_attr_destroy(ptr noundef nonnull %8) #20
  %60 = icmp eq i32 %57, 0
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #16
  call void @llvm.lifetime.end.p0(i64 56, ptr nonnull %8) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %7) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %6) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #16
  ret i1 %60
}

; Function Attrs: noreturn nounwind optsize
define internal noalias noundef nonnull ptr @run_worker(ptr noundef %0) #14 {
  %2 = alloca %struct.timespec, align 8
  %3 = getelementptr inbounds i8, ptr %0, i64 8
  %4 = load ptr, ptr %3, align 8, !tbaa !69
  tail call fastcc void @become_helper(ptr noundef %4, ptr noundef nonnull @.str) #24
  %5 = load ptr, ptr %3, align 8, !tbaa !69
  %6 = tail call i64 (i64, ...) @syscall(i64 noundef 186) #20
  %7 = trunc i64 %6 to i32
  %8 = getelementptr inbounds i8, ptr %0, i64 20
  store i32 %7, ptr %8, align 4, !tbaa !76
  %9 = getelementptr inbounds i8, ptr %5, i64 52
  %10 = load i8, ptr %9, align 4, !tbaa !14, !range !18, !noundef !19
  %11 = trunc nuw i8 %10 to i1
  br i1 %11, label %19, label %12

12:                                               ; preds = %1
  %13 = getelementptr inbounds i8, ptr %5, i64 72
  %14 = tail call fastcc zeroext i1 @may_run_on(i32 noundef 0, ptr noundef nonnull %13) #24
  br i1 %14, label %15, label %19

15:                                               ; preds = %12
  %16 = tail call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %13) #20
  %17 = icmp eq i32 %16, 0
  %18 = zext i1 %17 to i8
  br label %19

19:                                               ; preds = %15, %12, %1
  %20 = phi i8 [ 0, %12 ], [ 0, %1 ], [ %18, %15 ]
  %21 = getelementptr inbounds i8, ptr %0, i64 28
  store i8 %20, ptr %21, align 4, !tbaa !77
  %22 = tail call i32 @sched_getcpu() #20
  %23 = getelementptr inbounds i8, ptr %0, i64 24
  store i32 %22, ptr %23, align 8, !tbaa !78
  %24 = icmp ult i32 %22, 1024
  br i1 %24, label %25, label %31

25:                                               ; preds = %19
  %26 = load ptr, ptr %3, align 8, !tbaa !69
  %27 = getelementptr inbounds i8, ptr %26, i64 200
  %28 = zext nneg i32 %22 to i64
  %29 = getelementptr inbounds [1024 x i16], ptr %27, i64 0, i64 %28
  %30 = atomicrmw add ptr %29, i16 1 seq_cst, align 2
  br label %31

31:                                               ; preds = %19, %25
  %32 = getelementptr inbounds i8, ptr %2, i64 8
  br label %33

33:                                               ; preds = %67, %31
  %34 = phi i32 [ 0, %31 ], [ %68, %67 ]
  %35 = phi i64 [ 0, %31 ], [ %69, %67 ]
  %36 = phi i64 [ 100000, %31 ], [ %70, %67 ]
  br label %37

37:                                               ; preds = %33, %86
  %38 = phi i32 [ %34, %33 ], [ %77, %86 ]
  %39 = phi i64 [ %36, %33 ], [ 9223372036854775807, %86 ]
  %40 = icmp eq i64 %39, 0
  br label %41

41:                                               ; preds = %37, %76
  %42 = phi i32 [ %77, %76 ], [ %38, %37 ]
  br label %43

43:                                               ; preds = %41, %46
  %44 = load atomic i64, ptr %0 acquire, align 128
  %45 = icmp ugt i64 %44, 3
  br i1 %45, label %46, label %75

46:                                               ; preds = %43
  %47 = cmpxchg ptr %0, i64 %44, i64 3 seq_cst seq_cst, align 128
  %48 = extractvalue { i64, i1 } %47, 1
  br i1 %48, label %49, label %43

49:                                               ; preds = %46
  %50 = and i64 %44, 281474976710655
  %51 = inttoptr i64 %50 to ptr
  %52 = getelementptr inbounds i8, ptr %51, i64 36
  %53 = load i32, ptr %52, align 4, !tbaa !39
  %54 = sext i32 %53 to i64
  %55 = getelementptr inbounds [3 x i64], ptr @spin_ns, i64 0, i64 %54
  %56 = load i64, ptr %55, align 8, !tbaa !24
  %57 = lshr i64 %44, 48
  %58 = trunc nuw nsw i64 %57 to i32
  call fastcc void @run_task(ptr noundef %51, i32 noundef %58) #24
  %59 = call fastcc i32 @take_loose(ptr noundef %51) #24
  %60 = icmp sgt i32 %59, -1
  br i1 %60, label %71, label %61

61:                                               ; preds = %71, %49
  store atomic i64 0, ptr %0 release, align 128
  %62 = getelementptr inbounds i8, ptr %51, i64 32
  %63 = atomicrmw sub ptr %62, i32 1 seq_cst, align 8
  %64 = icmp eq i32 %63, -2147483647
  br i1 %64, label %65, label %67

65:                                               ; preds = %61
  %66 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %62, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %67

67:                                               ; preds = %65, %61, %99, %89
  %68 = phi i32 [ %77, %89 ], [ 0, %99 ], [ 0, %61 ], [ 0, %65 ]
  %69 = phi i64 [ %97, %89 ], [ 0, %99 ], [ 0, %61 ], [ 0, %65 ]
  %70 = phi i64 [ %39, %89 ], [ %39, %99 ], [ %56, %61 ], [ %56, %65 ]
  br label %33

71:                                               ; preds = %49, %71
  %72 = phi i32 [ %73, %71 ], [ %59, %49 ]
  call fastcc void @run_task(ptr noundef %51, i32 noundef %72) #24
  %73 = call fastcc i32 @take_loose(ptr noundef %51) #24
  %74 = icmp sgt i32 %73, -1
  br i1 %74, label %71, label %61, !llvm.loop !79

75:                                               ; preds = %43
  br i1 %40, label %99, label %76

76:                                               ; preds = %75
  call void @llvm.x86.sse2.pause()
  %77 = add i32 %42, 1
  %78 = and i32 %77, 15
  %79 = icmp eq i32 %78, 0
  br i1 %79, label %80, label %41

80:                                               ; preds = %76
  %81 = icmp eq i64 %39, 9223372036854775807
  br i1 %81, label %82, label %89

82:                                               ; preds = %80
  %83 = icmp ugt i32 %77, 1024
  br i1 %83, label %84, label %86

84:                                               ; preds = %82
  %85 = call i32 @sched_yield() #20
  br label %86

86:                                               ; preds = %84, %82
  %87 = load atomic i32, ptr @always_users monotonic, align 4
  %88 = icmp sgt i32 %87, 0
  br i1 %88, label %37, label %99

89:                                               ; preds = %80
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #16
  %90 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #20
  %91 = load i64, ptr %2, align 8, !tbaa !54
  %92 = mul nsw i64 %91, 1000000000
  %93 = load i64, ptr %32, align 8, !tbaa !56
  %94 = add nsw i64 %92, %93
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #16
  %95 = icmp eq i64 %35, 0
  %96 = add nsw i64 %94, %39
  %97 = select i1 %95, i64 %96, i64 %35
  %98 = icmp slt i64 %94, %97
  br i1 %98, label %67, label %99

99:                                               ; preds = %75, %86, %89
  call fastcc void @rest(ptr noundef nonnull %0) #23
  br label %67
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
  store ptr %0, ptr %3, align 8, !tbaa !27
  %6 = getelementptr inbounds i8, ptr %3, i64 8
  store i32 1, ptr %6, align 8, !tbaa !29
  %7 = getelementptr inbounds i8, ptr %3, i64 12
  store i32 2, ptr %7, align 4, !tbaa !30
  %8 = load i32, ptr @state_key, align 4, !tbaa !13
  %9 = tail call i32 @pthread_setspecific(i32 noundef %8, ptr noundef nonnull %3) #20
  br label %10

10:                                               ; preds = %5, %2
  %11 = tail call i64 @pthread_self() #26
  %12 = tail call i32 @pthread_setname_np(i64 noundef %11, ptr noundef %1) #20
  ret void
}

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @rest(ptr noundef %0) unnamed_addr #12 {
  %2 = getelementptr inbounds i8, ptr %0, i64 24
  %3 = load i32, ptr %2, align 8, !tbaa !78
  %4 = icmp ult i32 %3, 1024
  br i1 %4, label %5, label %12

5:                                                ; preds = %1
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = load ptr, ptr %6, align 8, !tbaa !69
  %8 = getelementptr inbounds i8, ptr %7, i64 200
  %9 = zext nneg i32 %3 to i64
  %10 = getelementptr inbounds [1024 x i16], ptr %8, i64 0, i64 %9
  %11 = atomicrmw add ptr %10, i16 -1 seq_cst, align 2
  br label %12

12:                                               ; preds = %1, %5
  %13 = cmpxchg ptr %0, i64 0, i64 1 seq_cst seq_cst, align 128
  %14 = extractvalue { i64, i1 } %13, 1
  br i1 %14, label %15, label %26

15:                                               ; preds = %12
  %16 = load atomic i64, ptr %0 seq_cst, align 128
  %17 = add i64 %16, -1
  %18 = icmp ult i64 %17, 2
  br i1 %18, label %19, label %26

19:                                               ; preds = %15, %19
  %20 = phi i64 [ %23, %19 ], [ %16, %15 ]
  %21 = trunc nuw i64 %20 to i32
  %22 = tail call fastcc zeroext i1 @futex_wait(ptr noundef nonnull %0, i32 noundef %21, i64 noundef 0) #24
  %23 = load atomic i64, ptr %0 seq_cst, align 128
  %24 = add i64 %23, -1
  %25 = icmp ult i64 %24, 2
  br i1 %25, label %19, label %26, !llvm.loop !80

26:                                               ; preds = %19, %15, %12
  %27 = tail call i32 @sched_getcpu() #20
  store i32 %27, ptr %2, align 8, !tbaa !78
  %28 = icmp ult i32 %27, 1024
  br i1 %28, label %29, label %36

29:                                               ; preds = %26
  %30 = getelementptr inbounds i8, ptr %0, i64 8
  %31 = load ptr, ptr %30, align 8, !tbaa !69
  %32 = getelementptr inbounds i8, ptr %31, i64 200
  %33 = zext nneg i32 %27 to i64
  %34 = getelementptr inbounds [1024 x i16], ptr %32, i64 0, i64 %33
  %35 = atomicrmw add ptr %34, i16 1 seq_cst, align 2
  br label %36

36:                                               ; preds = %26, %29
  %37 = getelementptr inbounds i8, ptr %0, i64 29
  %38 = load i8, ptr %37, align 1, !tbaa !72, !range !18, !noundef !19
  %39 = trunc nuw i8 %38 to i1
  br i1 %39, label %40, label %51

40:                                               ; preds = %36
  store i8 0, ptr %37, align 1, !tbaa !72
  %41 = getelementptr inbounds i8, ptr %0, i64 32
  %42 = tail call fastcc zeroext i1 @may_run_on(i32 noundef 0, ptr noundef nonnull %41) #24
  br i1 %42, label %43, label %51

43:                                               ; preds = %40
  %44 = getelementptr inbounds i8, ptr %0, i64 8
  %45 = load ptr, ptr %44, align 8, !tbaa !69
  %46 = getelementptr inbounds i8, ptr %45, i64 72
  %47 = tail call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %46) #20
  %48 = icmp eq i32 %47, 0
  %49 = getelementptr inbounds i8, ptr %0, i64 28
  %50 = zext i1 %48 to i8
  store i8 %50, ptr %49, align 4, !tbaa !77
  br label %51

51:                                               ; preds = %40, %43, %36
  ret void
}

; Function Attrs: nounwind optsize
declare i32 @pthread_setname_np(i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare i64 @pthread_self() local_unnamed_addr #15

; Function Attrs: nounwind optsize
declare i64 @syscall(i64 noundef, ...) local_unnamed_addr #5

; Function Attrs: nounwind optsize
define internal fastcc zeroext i1 @may_run_on(i32 noundef %0, ptr nocapture noundef readonly %1) unnamed_addr #2 {
  %3 = alloca %struct.cpu_set_t, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #16
  %4 = call i32 @sched_getaffinity(i32 noundef %0, i64 noundef 128, ptr noundef nonnull %3) #20
  %5 = icmp eq i32 %4, 0
  br i1 %5, label %6, label %9

6:                                                ; preds = %2
  %7 = call i32 @bcmp(ptr noundef nonnull dereferenceable(128) %3, ptr noundef nonnull dereferenceable(128) %1, i64 128)
  %8 = icmp eq i32 %7, 0
  br label %9

9:                                                ; preds = %6, %2
  %10 = phi i1 [ false, %2 ], [ %8, %6 ]
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #16
  ret i1 %10
}

; Function Attrs: nounwind optsize
declare i32 @sched_setaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @sched_getcpu() local_unnamed_addr #5

; Function Attrs: nounwind
declare void @llvm.x86.sse2.pause() #16

; Function Attrs: nounwind optsize
declare i32 @sched_yield() local_unnamed_addr #5

; Function Attrs: nounwind optsize
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #5

; Function Attrs: nounwind optsize
define internal fastcc zeroext i1 @futex_wait(ptr noundef %0, i32 noundef %1, i64 noundef %2) unnamed_addr #2 {
  %4 = alloca %struct.timespec, align 8
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #16
  %5 = udiv i64 %2, 1000000000
  store i64 %5, ptr %4, align 8, !tbaa !54
  %6 = getelementptr inbounds i8, ptr %4, i64 8
  %7 = urem i64 %2, 1000000000
  store i64 %7, ptr %6, align 8, !tbaa !56
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

; Function Attrs: mustprogress nofree nosync nounwind optsize willreturn memory(none)
declare ptr @__errno_location() local_unnamed_addr #15

; Function Attrs: cold noinline nounwind optsize
define internal fastcc void @wake(ptr noundef %0, i64 noundef %1) unnamed_addr #12 {
  %3 = alloca %struct.cpu_set_t, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 8
  %5 = load ptr, ptr %4, align 8, !tbaa !69
  %6 = tail call i32 @sched_getcpu() #20
  %7 = getelementptr inbounds i8, ptr %0, i64 28
  %8 = load i8, ptr %7, align 4, !tbaa !77, !range !18, !noundef !19
  %9 = trunc nuw i8 %8 to i1
  %10 = icmp sgt i32 %6, -1
  %11 = select i1 %9, i1 %10, i1 false
  br i1 %11, label %12, label %75

12:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #16
  %13 = getelementptr inbounds i8, ptr %5, i64 72
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %3, ptr noundef nonnull align 8 dereferenceable(128) %13, i64 128, i1 false), !tbaa.struct !74
  %14 = icmp ult i32 %6, 1024
  br i1 %14, label %15, label %24

15:                                               ; preds = %12
  %16 = zext nneg i32 %6 to i64
  %17 = and i64 %16, 63
  %18 = shl nuw i64 1, %17
  %19 = xor i64 %18, -1
  %20 = lshr i64 %16, 6
  %21 = getelementptr inbounds i64, ptr %3, i64 %20
  %22 = load i64, ptr %21, align 8, !tbaa !24
  %23 = and i64 %22, %19
  store i64 %23, ptr %21, align 8, !tbaa !24
  br label %24

24:                                               ; preds = %15, %12
  %25 = getelementptr inbounds i8, ptr %5, i64 56
  %26 = load i32, ptr %25, align 8, !tbaa !20
  %27 = icmp sgt i32 %26, 0
  br i1 %27, label %28, label %31

28:                                               ; preds = %24
  %29 = getelementptr inbounds i8, ptr %5, i64 64
  %30 = getelementptr inbounds i8, ptr %5, i64 200
  br label %34

31:                                               ; preds = %55, %24
  %32 = call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull %3) #20
  %33 = icmp eq i32 %32, 0
  br i1 %33, label %74, label %60

34:                                               ; preds = %55, %28
  %35 = phi i64 [ 0, %28 ], [ %56, %55 ]
  %36 = load ptr, ptr %29, align 8, !tbaa !21
  %37 = getelementptr inbounds i32, ptr %36, i64 %35
  %38 = load i32, ptr %37, align 4, !tbaa !13
  %39 = icmp slt i32 %38, 1024
  br i1 %39, label %40, label %55

40:                                               ; preds = %34
  %41 = sext i32 %38 to i64
  %42 = getelementptr inbounds [1024 x i16], ptr %30, i64 0, i64 %41
  %43 = load atomic i16, ptr %42 seq_cst, align 2
  %44 = icmp ne i16 %43, 0
  %45 = icmp ult i32 %38, 1024
  %46 = and i1 %45, %44
  br i1 %46, label %47, label %55

47:                                               ; preds = %40
  %48 = and i64 %41, 63
  %49 = shl nuw i64 1, %48
  %50 = xor i64 %49, -1
  %51 = lshr i64 %41, 6
  %52 = getelementptr inbounds i64, ptr %3, i64 %51
  %53 = load i64, ptr %52, align 8, !tbaa !24
  %54 = and i64 %53, %50
  store i64 %54, ptr %52, align 8, !tbaa !24
  br label %55

55:                                               ; preds = %47, %40, %34
  %56 = add nuw nsw i64 %35, 1
  %57 = load i32, ptr %25, align 8, !tbaa !20
  %58 = sext i32 %57 to i64
  %59 = icmp slt i64 %56, %58
  br i1 %59, label %34, label %31, !llvm.loop !81

60:                                               ; preds = %31
  %61 = call i32 @bcmp(ptr noundef nonnull dereferenceable(128) %3, ptr noundef nonnull dereferenceable(128) %13, i64 128)
  %62 = icmp eq i32 %61, 0
  br i1 %62, label %74, label %63

63:                                               ; preds = %60
  %64 = getelementptr inbounds i8, ptr %0, i64 20
  %65 = load i32, ptr %64, align 4, !tbaa !76
  %66 = call fastcc zeroext i1 @may_run_on(i32 noundef %65, ptr noundef nonnull %13) #24
  br i1 %66, label %67, label %74

67:                                               ; preds = %63
  %68 = getelementptr inbounds i8, ptr %0, i64 32
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 32 dereferenceable(128) %68, ptr noundef nonnull align 8 dereferenceable(128) %3, i64 128, i1 false), !tbaa.struct !74
  %69 = load i32, ptr %64, align 4, !tbaa !76
  %70 = call i32 @sched_setaffinity(i32 noundef %69, i64 noundef 128, ptr noundef nonnull %3) #20
  %71 = icmp eq i32 %70, 0
  %72 = getelementptr inbounds i8, ptr %0, i64 29
  %73 = zext i1 %71 to i8
  store i8 %73, ptr %72, align 1, !tbaa !72
  br label %74

74:                                               ; preds = %67, %63, %60, %31
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #16
  br label %75

75:                                               ; preds = %2, %74
  store atomic i64 %1, ptr %0 seq_cst, align 128
  %76 = call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %0, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  ret void
}

; Function Attrs: nounwind optsize
declare i32 @__sched_cpucount(i64 noundef, ptr noundef) local_unnamed_addr #5

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
  br i1 %8, label %3, label %9, !llvm.loop !82

9:                                                ; preds = %6
  %10 = atomicrmw sub ptr %2, i32 1 seq_cst, align 8
  %11 = getelementptr inbounds i8, ptr %0, i64 64
  %12 = load ptr, ptr %11, align 8, !tbaa !42
  %13 = lshr i32 %4, 6
  %14 = zext nneg i32 %13 to i64
  %15 = getelementptr inbounds i64, ptr %12, i64 %14
  %16 = and i32 %4, 63
  %17 = zext nneg i32 %16 to i64
  br label %54

18:                                               ; preds = %3
  %19 = getelementptr inbounds i8, ptr %0, i64 40
  %20 = load ptr, ptr %19, align 8, !tbaa !40
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
  %29 = load ptr, ptr %19, align 8, !tbaa !40
  %30 = getelementptr inbounds i8, ptr %29, i64 2256
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
  %47 = load ptr, ptr %46, align 8, !tbaa !42
  %48 = lshr i64 %40, 54
  %49 = getelementptr inbounds i64, ptr %47, i64 %48
  %50 = and i64 %41, 63
  br label %54

51:                                               ; preds = %27, %36, %39
  %52 = add nuw nsw i64 %28, 1
  %53 = icmp eq i64 %52, %26
  br i1 %53, label %59, label %27, !llvm.loop !83

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
  %4 = load ptr, ptr %3, align 8, !tbaa !40
  %5 = getelementptr inbounds i8, ptr %4, i64 8
  %6 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %5) #20
  %7 = getelementptr inbounds i8, ptr %4, i64 2248
  %8 = load ptr, ptr %7, align 8, !tbaa !63
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %14

10:                                               ; preds = %2
  %11 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #20
  %12 = tail call noalias dereferenceable_or_null(40) ptr @calloc(i64 noundef 1, i64 noundef 40) #21
  %13 = icmp eq ptr %12, null
  br i1 %13, label %29, label %22

14:                                               ; preds = %2
  %15 = load ptr, ptr %8, align 8, !tbaa !84
  store ptr %15, ptr %7, align 8, !tbaa !63
  %16 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %5) #20
  %17 = getelementptr inbounds i8, ptr %8, i64 32
  store ptr %4, ptr %17, align 8, !tbaa !86
  %18 = getelementptr inbounds i8, ptr %8, i64 16
  store ptr %0, ptr %18, align 8, !tbaa !87
  %19 = getelementptr inbounds i8, ptr %8, i64 24
  store i32 %1, ptr %19, align 8, !tbaa !88
  %20 = getelementptr inbounds i8, ptr %8, i64 8
  store atomic i32 1, ptr %20 seq_cst, align 8
  %21 = tail call i64 (i64, ...) @syscall(i64 noundef 202, ptr noundef nonnull %20, i32 noundef 129, i32 noundef 1, ptr noundef null, ptr noundef null, i32 noundef 0) #20
  br label %29

22:                                               ; preds = %10
  %23 = getelementptr inbounds i8, ptr %12, i64 32
  store ptr %4, ptr %23, align 8, !tbaa !86
  %24 = getelementptr inbounds i8, ptr %12, i64 16
  store ptr %0, ptr %24, align 8, !tbaa !87
  %25 = getelementptr inbounds i8, ptr %12, i64 24
  store i32 %1, ptr %25, align 8, !tbaa !88
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
  %3 = load ptr, ptr %2, align 8, !tbaa !86
  tail call fastcc void @become_helper(ptr noundef %3, ptr noundef nonnull @.str.1) #24
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = getelementptr inbounds i8, ptr %0, i64 24
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = getelementptr inbounds i8, ptr %3, i64 8
  %8 = getelementptr inbounds i8, ptr %3, i64 2248
  br label %9

9:                                                ; preds = %24, %1
  %10 = load ptr, ptr %4, align 8, !tbaa !87
  %11 = load i32, ptr %5, align 8, !tbaa !88
  tail call fastcc void @run_task(ptr noundef %10, i32 noundef %11) #24
  %12 = load ptr, ptr %4, align 8, !tbaa !87
  store atomic i32 0, ptr %6 seq_cst, align 8
  %13 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #20
  %14 = load ptr, ptr %8, align 8, !tbaa !63
  store ptr %14, ptr %0, align 8, !tbaa !84
  store ptr %0, ptr %8, align 8, !tbaa !63
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
  br i1 %29, label %25, label %24, !llvm.loop !89

30:                                               ; preds = %25
  %31 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %7) #20
  br label %32

32:                                               ; preds = %32, %30
  %33 = phi ptr [ %8, %30 ], [ %34, %32 ]
  %34 = load ptr, ptr %33, align 8, !tbaa !10
  %35 = icmp eq ptr %34, null
  %36 = icmp eq ptr %34, %0
  %37 = or i1 %35, %36
  br i1 %37, label %38, label %32, !llvm.loop !90

38:                                               ; preds = %32
  br i1 %35, label %39, label %41

39:                                               ; preds = %38
  %40 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %7) #20
  br label %27

41:                                               ; preds = %38
  %42 = load ptr, ptr %0, align 8, !tbaa !84
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
!15 = !{!"Pool", !11, i64 0, !5, i64 8, !5, i64 48, !16, i64 52, !4, i64 56, !11, i64 64, !17, i64 72, !5, i64 200, !11, i64 2248, !5, i64 2256}
!16 = !{!"_Bool", !5, i64 0}
!17 = !{!"", !5, i64 0}
!18 = !{i8 0, i8 2}
!19 = !{}
!20 = !{!15, !4, i64 56}
!21 = !{!15, !11, i64 64}
!22 = distinct !{!22, !23}
!23 = !{!"llvm.loop.mustprogress"}
!24 = !{!7, !7, i64 0}
!25 = distinct !{!25, !23}
!26 = !{!15, !11, i64 0}
!27 = !{!28, !11, i64 0}
!28 = !{!"", !11, i64 0, !4, i64 8, !4, i64 12, !4, i64 16}
!29 = !{!28, !4, i64 8}
!30 = !{!28, !4, i64 12}
!31 = !{!32, !11, i64 0}
!32 = !{!"", !11, i64 0, !11, i64 8, !11, i64 16, !11, i64 24, !11, i64 32, !11, i64 40, !11, i64 48}
!33 = !{!34, !11, i64 0}
!34 = !{!"", !11, i64 0, !4, i64 8}
!35 = !{!34, !4, i64 8}
!36 = !{!37, !11, i64 16}
!37 = !{!"", !34, i64 0, !11, i64 16, !11, i64 24, !5, i64 32, !4, i64 36, !11, i64 40, !5, i64 48, !5, i64 56, !4, i64 60, !11, i64 64, !5, i64 72, !5, i64 76, !5, i64 80, !5, i64 88}
!38 = !{!37, !11, i64 24}
!39 = !{!37, !4, i64 36}
!40 = !{!37, !11, i64 40}
!41 = !{!37, !4, i64 60}
!42 = !{!37, !11, i64 64}
!43 = !{!28, !4, i64 16}
!44 = !{!5, !5, i64 0}
!45 = distinct !{!45, !23}
!46 = distinct !{!46, !23}
!47 = distinct !{!47, !23}
!48 = distinct !{!48, !23}
!49 = distinct !{!49, !23}
!50 = distinct !{!50, !23}
!51 = distinct !{!51, !23}
!52 = distinct !{!52, !23}
!53 = distinct !{!53, !23}
!54 = !{!55, !7, i64 0}
!55 = !{!"timespec", !7, i64 0, !7, i64 8}
!56 = !{!55, !7, i64 8}
!57 = !{!32, !11, i64 32}
!58 = !{!32, !11, i64 40}
!59 = !{!32, !11, i64 8}
!60 = distinct !{!60, !23}
!61 = !{!32, !11, i64 16}
!62 = !{!32, !11, i64 48}
!63 = !{!15, !11, i64 2248}
!64 = distinct !{!64, !23}
!65 = distinct !{!65, !23}
!66 = !{!32, !11, i64 24}
!67 = distinct !{!67, !23}
!68 = distinct !{!68, !23}
!69 = !{!70, !11, i64 8}
!70 = !{!"", !5, i64 0, !11, i64 8, !4, i64 16, !4, i64 20, !4, i64 24, !16, i64 28, !16, i64 29, !17, i64 32}
!71 = !{!70, !4, i64 16}
!72 = !{!70, !16, i64 29}
!73 = distinct !{!73, !23}
!74 = !{i64 0, i64 128, !44}
!75 = distinct !{!75, !23}
!76 = !{!70, !4, i64 20}
!77 = !{!70, !16, i64 28}
!78 = !{!70, !4, i64 24}
!79 = distinct !{!79, !23}
!80 = distinct !{!80, !23}
!81 = distinct !{!81, !23}
!82 = distinct !{!82, !23}
!83 = distinct !{!83, !23}
!84 = !{!85, !11, i64 0}
!85 = !{!"Extra", !11, i64 0, !5, i64 8, !11, i64 16, !4, i64 24, !11, i64 32}
!86 = !{!85, !11, i64 32}
!87 = !{!85, !11, i64 16}
!88 = !{!85, !4, i64 24}
!89 = distinct !{!89, !23}
!90 = distinct !{!90, !23}
