; Debug information of things that C lacks, as compilers of Pascal, Ada, Go, Zig and Crystal make it.
target triple = "x86_64-pc-linux-gnu"

@t = global [176 x i8] zeroinitializer, align 8, !dbg !0

!llvm.dbg.cu = !{!2}
!llvm.module.flags = !{!26}

!0 = !DIGlobalVariableExpression(var: !1, expr: !DIExpression())
!1 = distinct !DIGlobalVariable(name: "t", scope: !2, file: !3, line: 1, type: !4, isLocal: false, isDefinition: true)
!2 = distinct !DICompileUnit(language: DW_LANG_Pascal83, file: !3, producer: "other", isOptimized: false, runtimeVersion: 0, emissionKind: FullDebug, globals: !{!0})
!3 = !DIFile(filename: "other.pas", directory: "/")
!4 = !DICompositeType(tag: DW_TAG_structure_type, name: "Other", file: !3, size: 1408, elements: !{!5, !6, !7, !8, !9, !10, !11, !12, !13})
; Without a lower bound, arrays of Pascal begin at 1.
!5 = !DIDerivedType(tag: DW_TAG_member, name: "from_one", scope: !4, file: !3, baseType: !14, size: 320, offset: 0)
!6 = !DIDerivedType(tag: DW_TAG_member, name: "from_minus_two", scope: !4, file: !3, baseType: !16, size: 160, offset: 320)
; A name without a name, of a number.
!7 = !DIDerivedType(tag: DW_TAG_member, name: "named", scope: !4, file: !3, baseType: !18, size: 32, offset: 480)
; Types without values.
!8 = !DIDerivedType(tag: DW_TAG_member, name: "nothing", scope: !4, file: !3, baseType: !19, size: 0, offset: 512)
; A function, meaning its address.
!9 = !DIDerivedType(tag: DW_TAG_member, name: "linux", scope: !4, file: !3, baseType: !20, size: 64, offset: 512)
; An array with a width.
!10 = !DIDerivedType(tag: DW_TAG_member, name: "wide", scope: !4, file: !3, baseType: !22, size: 600, offset: 576, flags: DIFlagBitField)
; Before the value.
!11 = !DIDerivedType(tag: DW_TAG_member, name: "beyond", scope: !4, file: !3, baseType: !24, size: 32, offset: 18446744073709551568)
!12 = !DIDerivedType(tag: DW_TAG_member, name: "last", scope: !4, file: !3, baseType: !24, size: 32, offset: 1216)
; A number with a name of C, and more bytes than in C.
!13 = !DIDerivedType(tag: DW_TAG_member, name: "large", scope: !4, file: !3, baseType: !27, size: 64, offset: 1280)
!14 = !DICompositeType(tag: DW_TAG_array_type, baseType: !24, size: 320, elements: !{!15})
!15 = !DISubrange(upperBound: 10)
!16 = !DICompositeType(tag: DW_TAG_array_type, baseType: !24, size: 160, elements: !{!17})
!17 = !DISubrange(lowerBound: -2, upperBound: 2)
!18 = !DIDerivedType(tag: DW_TAG_typedef, name: "", file: !3, baseType: !24)
!19 = !DIBasicType(tag: DW_TAG_unspecified_type, name: "void")
!20 = !DISubroutineType(types: !{null, !19, !24})
!22 = !DICompositeType(tag: DW_TAG_array_type, baseType: !25, size: 640, elements: !{!23})
!23 = !DISubrange(count: 10)
!24 = !DIBasicType(name: "int", size: 32, encoding: DW_ATE_signed)
!25 = !DIBasicType(name: "long", size: 64, encoding: DW_ATE_signed)
!27 = !DIBasicType(name: "unsigned int", size: 64, encoding: DW_ATE_unsigned)
!26 = !{i32 2, !"Debug Info Version", i32 3}
