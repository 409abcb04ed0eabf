// SPDX-License-Identifier: Apache-2.0
// Made by scripts/ptx.sh of kernels.h; a test compares them.
#pragma once

namespace kvcove::transport::cuda {

inline constexpr char kKernelsPtx[] = R"ptx(
.version 6.3
.target sm_70
.address_size 64

	// .globl	kvcove_scatter          // -- Begin function kvcove_scatter
                                        // @kvcove_scatter
.visible .entry kvcove_scatter(
	.param .u64 kvcove_scatter_param_0,
	.param .u32 kvcove_scatter_param_1
)
{
	.reg .pred 	%p<40>;
	.reg .b16 	%rs<29>;
	.reg .b32 	%r<88>;
	.reg .b64 	%rd<377>;

	ld.param.u32 	%r18, [kvcove_scatter_param_1];
	setp.eq.s32 	%p1, %r18, 0;
	@%p1 bra 	$L__BB0_54;
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r19, %ntid.x;
	min.u32 	%r4, %r19, 32;
	cvt.u16.u32 	%rs3, %r19;
	cvt.u16.u32 	%rs1, %r4;
	div.u16 	%rs4, %rs3, %rs1;
	cvt.u32.u16 	%r5, %rs4;
	mul.lo.s32 	%r20, %r4, %r5;
	setp.ge.u32 	%p2, %r1, %r20;
	@%p2 bra 	$L__BB0_54;
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %nctaid.x;
	cvt.u16.u32 	%rs5, %r1;
	div.u16 	%rs6, %rs5, %rs1;
	cvt.u32.u16 	%r22, %rs6;
	mad.lo.s32 	%r87, %r2, %r5, %r22;
	mul.lo.s32 	%r7, %r3, %r5;
	setp.le.u32 	%p3, %r7, %r18;
	mov.b32 	%r86, 1;
	@%p3 bra 	$L__BB0_4;
	div.u32 	%r86, %r7, %r18;
$L__BB0_4:                              // %cond.end20.i
	mul.lo.s32 	%r10, %r86, %r18;
	setp.ge.u32 	%p4, %r87, %r10;
	@%p4 bra 	$L__BB0_54;
	ld.param.u64 	%rd216, [kvcove_scatter_param_0];
	mul.lo.s16 	%rs7, %rs6, %rs1;
	cvta.to.global.u64 	%rd1, %rd216;
	sub.s16 	%rs2, %rs5, %rs7;
	cvt.u64.u32 	%rd2, %r86;
	cvt.u64.u16 	%rd3, %rs2;
	cvt.u64.u32 	%rd4, %r4;
	mul.wide.u32 	%rd5, %r4, 3;
	add.s64 	%rd6, %rd5, %rd3;
	mul.wide.u32 	%rd7, %r4, 4;
	mul.wide.u32 	%rd8, %r4, 7;
	add.s64 	%rd9, %rd6, %rd7;
	mul.wide.u32 	%rd10, %r4, 8;
	mul.wide.u32 	%rd11, %r4, 2;
	cvt.u32.u16 	%r23, %rs2;
	mul.wide.u32 	%rd12, %r23, 4;
	mul.wide.u32 	%rd13, %r4, 16;
	mul.wide.u32 	%rd14, %r4, 12;
	mul.wide.u32 	%rd15, %r23, 16;
	mul.wide.u32 	%rd16, %r4, 32;
	mul.wide.u32 	%rd17, %r4, 128;
	mul.wide.u32 	%rd18, %r4, 48;
	mul.wide.u32 	%rd19, %r4, 64;
	mul.wide.u32 	%rd20, %r4, 80;
	mul.wide.u32 	%rd21, %r4, 96;
	mul.wide.u32 	%rd22, %r4, 112;
	setp.eq.s32 	%p5, %r86, 1;
	bra.uni 	$L__BB0_6;
$L__BB0_53:                             // %cleanup.i
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s32 	%r87, %r87, %r7;
	setp.lt.u32 	%p39, %r87, %r10;
	@%p39 bra 	$L__BB0_6;
	bra.uni 	$L__BB0_54;
$L__BB0_6:                              // %for.body.i
                                        // =>This Loop Header: Depth=1
                                        //     Child Loop BB0_50 Depth 2
                                        //     Child Loop BB0_52 Depth 2
                                        //     Child Loop BB0_36 Depth 2
                                        //     Child Loop BB0_39 Depth 2
                                        //     Child Loop BB0_42 Depth 2
                                        //     Child Loop BB0_45 Depth 2
                                        //     Child Loop BB0_47 Depth 2
                                        //     Child Loop BB0_15 Depth 2
                                        //     Child Loop BB0_17 Depth 2
                                        //     Child Loop BB0_20 Depth 2
                                        //     Child Loop BB0_24 Depth 2
                                        //     Child Loop BB0_27 Depth 2
                                        //     Child Loop BB0_30 Depth 2
                                        //     Child Loop BB0_32 Depth 2
	div.u32 	%r15, %r87, %r86;
	mul.wide.u32 	%rd217, %r15, 24;
	add.s64 	%rd218, %rd1, %rd217;
	ld.global.u64 	%rd25, [%rd218+16];
	mov.u64 	%rd320, %rd25;
	@%p5 bra 	$L__BB0_11;
                                        //   in Loop: Header=BB0_6 Depth=1
	and.b64  	%rd219, %rd25, -4294967296;
	setp.ne.s64 	%p6, %rd219, 0;
	@%p6 bra 	$L__BB0_9;
	bra.uni 	$L__BB0_8;
$L__BB0_9:                              //   in Loop: Header=BB0_6 Depth=1
	div.u64 	%rd319, %rd25, %rd2;
	bra.uni 	$L__BB0_10;
$L__BB0_8:                              //   in Loop: Header=BB0_6 Depth=1
	cvt.u32.u64 	%r24, %rd2;
	cvt.u32.u64 	%r25, %rd25;
	div.u32 	%r26, %r25, %r24;
	cvt.u64.u32 	%rd319, %r26;
$L__BB0_10:                             //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd220, %rd319, 15;
	and.b64  	%rd320, %rd220, -16;
$L__BB0_11:                             // %cond.end33.i
                                        //   in Loop: Header=BB0_6 Depth=1
	mul.lo.s32 	%r27, %r15, %r86;
	sub.s32 	%r16, %r87, %r27;
	cvt.u64.u32 	%rd221, %r16;
	mul.lo.s64 	%rd31, %rd320, %rd221;
	setp.le.u64 	%p7, %rd25, %rd31;
	@%p7 bra 	$L__BB0_53;
                                        //   in Loop: Header=BB0_6 Depth=1
	ld.global.u64 	%rd23, [%rd218];
	ld.global.u64 	%rd24, [%rd218+8];
	add.s32 	%r28, %r16, 1;
	setp.eq.s32 	%p8, %r28, %r86;
	sub.s64 	%rd222, %rd25, %rd31;
	add.s64 	%rd32, %rd31, %rd23;
	add.s64 	%rd33, %rd31, %rd24;
	min.u64 	%rd223, %rd222, %rd320;
	selp.b64 	%rd34, %rd222, %rd223, %p8;
	xor.b64  	%rd35, %rd33, %rd32;
	and.b64  	%rd224, %rd35, 15;
	setp.ne.s64 	%p9, %rd224, 0;
	@%p9 bra 	$L__BB0_33;
	bra.uni 	$L__BB0_13;
$L__BB0_33:                             // %if.else.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	and.b64  	%rd225, %rd35, 3;
	setp.ne.s64 	%p10, %rd225, 0;
	@%p10 bra 	$L__BB0_48;
	bra.uni 	$L__BB0_34;
$L__BB0_48:                             // %if.else5.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p11, %rd6, %rd34;
	mov.u64 	%rd375, %rd3;
	@%p11 bra 	$L__BB0_51;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd205, %rd33, %rd11;
	add.s64 	%rd206, %rd33, %rd5;
	add.s64 	%rd207, %rd33, %rd4;
	add.s64 	%rd208, %rd32, %rd11;
	add.s64 	%rd209, %rd32, %rd5;
	add.s64 	%rd210, %rd32, %rd4;
	mov.u64 	%rd375, %rd3;
$L__BB0_50:                             // %for.body.i.i70.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd226, %rd32, %rd375;
	ld.u8 	%rs8, [%rd226];
	add.s64 	%rd227, %rd210, %rd375;
	ld.u8 	%rs9, [%rd227];
	add.s64 	%rd228, %rd208, %rd375;
	ld.u8 	%rs10, [%rd228];
	add.s64 	%rd229, %rd209, %rd375;
	ld.u8 	%rs11, [%rd229];
	add.s64 	%rd230, %rd33, %rd375;
	st.u8 	[%rd230], %rs8;
	add.s64 	%rd231, %rd207, %rd375;
	st.u8 	[%rd231], %rs9;
	add.s64 	%rd232, %rd205, %rd375;
	st.u8 	[%rd232], %rs10;
	add.s64 	%rd233, %rd206, %rd375;
	st.u8 	[%rd233], %rs11;
	add.s64 	%rd375, %rd375, %rd7;
	add.s64 	%rd234, %rd5, %rd375;
	setp.lt.u64 	%p12, %rd234, %rd34;
	@%p12 bra 	$L__BB0_50;
$L__BB0_51:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p13, %rd375, %rd34;
	@%p13 bra 	$L__BB0_53;
$L__BB0_52:                             // %for.body.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd235, %rd32, %rd375;
	ld.u8 	%rs12, [%rd235];
	add.s64 	%rd236, %rd33, %rd375;
	st.u8 	[%rd236], %rs12;
	add.s64 	%rd375, %rd375, %rd4;
	setp.lt.u64 	%p14, %rd375, %rd34;
	@%p14 bra 	$L__BB0_52;
	bra.uni 	$L__BB0_53;
$L__BB0_13:                             // %if.then.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	neg.s64 	%rd265, %rd32;
	and.b64  	%rd266, %rd265, 15;
	min.u64 	%rd36, %rd266, %rd34;
	setp.ge.u64 	%p25, %rd6, %rd36;
	mov.u64 	%rd322, %rd3;
	@%p25 bra 	$L__BB0_16;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd39, %rd33, %rd11;
	add.s64 	%rd40, %rd33, %rd5;
	add.s64 	%rd41, %rd33, %rd4;
	add.s64 	%rd42, %rd32, %rd11;
	add.s64 	%rd43, %rd32, %rd5;
	add.s64 	%rd44, %rd32, %rd4;
	mov.u64 	%rd322, %rd3;
$L__BB0_15:                             // %for.body.i.i.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd269, %rd32, %rd322;
	ld.u8 	%rs19, [%rd269];
	add.s64 	%rd270, %rd44, %rd322;
	ld.u8 	%rs20, [%rd270];
	add.s64 	%rd271, %rd42, %rd322;
	ld.u8 	%rs21, [%rd271];
	add.s64 	%rd272, %rd43, %rd322;
	ld.u8 	%rs22, [%rd272];
	add.s64 	%rd273, %rd33, %rd322;
	st.u8 	[%rd273], %rs19;
	add.s64 	%rd274, %rd41, %rd322;
	st.u8 	[%rd274], %rs20;
	add.s64 	%rd275, %rd39, %rd322;
	st.u8 	[%rd275], %rs21;
	add.s64 	%rd276, %rd40, %rd322;
	st.u8 	[%rd276], %rs22;
	add.s64 	%rd322, %rd322, %rd7;
	add.s64 	%rd277, %rd5, %rd322;
	setp.lt.u64 	%p26, %rd277, %rd36;
	@%p26 bra 	$L__BB0_15;
$L__BB0_16:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p27, %rd322, %rd36;
	@%p27 bra 	$L__BB0_18;
$L__BB0_17:                             // %for.body.i.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd278, %rd32, %rd322;
	ld.u8 	%rs23, [%rd278];
	add.s64 	%rd279, %rd33, %rd322;
	st.u8 	[%rd279], %rs23;
	add.s64 	%rd322, %rd322, %rd4;
	setp.lt.u64 	%p28, %rd322, %rd36;
	@%p28 bra 	$L__BB0_17;
$L__BB0_18:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	sub.s64 	%rd267, %rd34, %rd36;
	shr.u64 	%rd37, %rd267, 4;
	add.s64 	%rd106, %rd36, %rd32;
	add.s64 	%rd105, %rd36, %rd33;
	setp.ge.u64 	%p29, %rd9, %rd37;
	mov.u64 	%rd341, %rd6;
	mov.u64 	%rd352, %rd3;
	@%p29 bra 	$L__BB0_22;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd339, %rd105, %rd16;
	add.s64 	%rd338, %rd105, %rd18;
	add.s64 	%rd337, %rd105, %rd19;
	add.s64 	%rd336, %rd105, %rd20;
	add.s64 	%rd335, %rd105, %rd21;
	add.s64 	%rd334, %rd105, %rd22;
	add.s64 	%rd333, %rd105, %rd13;
	add.s64 	%rd331, %rd106, %rd16;
	add.s64 	%rd330, %rd106, %rd18;
	add.s64 	%rd329, %rd106, %rd19;
	add.s64 	%rd328, %rd106, %rd20;
	add.s64 	%rd327, %rd106, %rd21;
	add.s64 	%rd326, %rd106, %rd22;
	add.s64 	%rd325, %rd106, %rd13;
	mov.u64 	%rd324, %rd106;
	mov.u64 	%rd332, %rd105;
	mov.u64 	%rd352, %rd3;
$L__BB0_20:                             // %for.body.i.i44.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd280, %rd324, %rd15;
	ld.v4.u32 	{%r34, %r35, %r36, %r37}, [%rd280];
	add.s64 	%rd281, %rd325, %rd15;
	ld.v4.u32 	{%r38, %r39, %r40, %r41}, [%rd281];
	add.s64 	%rd282, %rd331, %rd15;
	ld.v4.u32 	{%r42, %r43, %r44, %r45}, [%rd282];
	add.s64 	%rd283, %rd330, %rd15;
	ld.v4.u32 	{%r46, %r47, %r48, %r49}, [%rd283];
	add.s64 	%rd284, %rd329, %rd15;
	ld.v4.u32 	{%r50, %r51, %r52, %r53}, [%rd284];
	add.s64 	%rd285, %rd328, %rd15;
	ld.v4.u32 	{%r54, %r55, %r56, %r57}, [%rd285];
	add.s64 	%rd286, %rd327, %rd15;
	ld.v4.u32 	{%r58, %r59, %r60, %r61}, [%rd286];
	add.s64 	%rd287, %rd326, %rd15;
	ld.v4.u32 	{%r62, %r63, %r64, %r65}, [%rd287];
	add.s64 	%rd288, %rd332, %rd15;
	st.v4.u32 	[%rd288], {%r34, %r35, %r36, %r37};
	add.s64 	%rd289, %rd333, %rd15;
	st.v4.u32 	[%rd289], {%r38, %r39, %r40, %r41};
	add.s64 	%rd290, %rd339, %rd15;
	st.v4.u32 	[%rd290], {%r42, %r43, %r44, %r45};
	add.s64 	%rd291, %rd338, %rd15;
	st.v4.u32 	[%rd291], {%r46, %r47, %r48, %r49};
	add.s64 	%rd292, %rd337, %rd15;
	st.v4.u32 	[%rd292], {%r50, %r51, %r52, %r53};
	add.s64 	%rd293, %rd336, %rd15;
	st.v4.u32 	[%rd293], {%r54, %r55, %r56, %r57};
	add.s64 	%rd294, %rd335, %rd15;
	st.v4.u32 	[%rd294], {%r58, %r59, %r60, %r61};
	add.s64 	%rd295, %rd334, %rd15;
	st.v4.u32 	[%rd295], {%r62, %r63, %r64, %r65};
	add.s64 	%rd352, %rd352, %rd10;
	add.s64 	%rd296, %rd8, %rd352;
	add.s64 	%rd339, %rd339, %rd17;
	add.s64 	%rd338, %rd338, %rd17;
	add.s64 	%rd337, %rd337, %rd17;
	add.s64 	%rd336, %rd336, %rd17;
	add.s64 	%rd335, %rd335, %rd17;
	add.s64 	%rd334, %rd334, %rd17;
	add.s64 	%rd333, %rd333, %rd17;
	add.s64 	%rd332, %rd332, %rd17;
	add.s64 	%rd331, %rd331, %rd17;
	add.s64 	%rd330, %rd330, %rd17;
	add.s64 	%rd329, %rd329, %rd17;
	add.s64 	%rd328, %rd328, %rd17;
	add.s64 	%rd327, %rd327, %rd17;
	add.s64 	%rd326, %rd326, %rd17;
	add.s64 	%rd325, %rd325, %rd17;
	add.s64 	%rd324, %rd324, %rd17;
	setp.lt.u64 	%p30, %rd296, %rd37;
	@%p30 bra 	$L__BB0_20;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd341, %rd5, %rd352;
$L__BB0_22:                             // %_ZN6kvcove9transport4cuda8MoveManyIDv4_jLj8EEEyNS1_4LaneEPKT_PS5_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p31, %rd341, %rd37;
	@%p31 bra 	$L__BB0_25;
                                        //   in Loop: Header=BB0_6 Depth=1
	shl.b64 	%rd107, %rd352, 4;
	add.s64 	%rd350, %rd105, %rd16;
	add.s64 	%rd349, %rd105, %rd18;
	add.s64 	%rd348, %rd105, %rd13;
	add.s64 	%rd346, %rd106, %rd16;
	add.s64 	%rd345, %rd106, %rd18;
	add.s64 	%rd344, %rd106, %rd13;
	mov.u64 	%rd343, %rd106;
	mov.u64 	%rd347, %rd105;
$L__BB0_24:                             // %for.body.i27.i.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd297, %rd343, %rd107;
	ld.v4.u32 	{%r66, %r67, %r68, %r69}, [%rd297];
	add.s64 	%rd298, %rd344, %rd107;
	ld.v4.u32 	{%r70, %r71, %r72, %r73}, [%rd298];
	add.s64 	%rd299, %rd346, %rd107;
	ld.v4.u32 	{%r74, %r75, %r76, %r77}, [%rd299];
	add.s64 	%rd300, %rd345, %rd107;
	ld.v4.u32 	{%r78, %r79, %r80, %r81}, [%rd300];
	add.s64 	%rd301, %rd347, %rd107;
	st.v4.u32 	[%rd301], {%r66, %r67, %r68, %r69};
	add.s64 	%rd302, %rd348, %rd107;
	st.v4.u32 	[%rd302], {%r70, %r71, %r72, %r73};
	add.s64 	%rd303, %rd350, %rd107;
	st.v4.u32 	[%rd303], {%r74, %r75, %r76, %r77};
	add.s64 	%rd304, %rd349, %rd107;
	st.v4.u32 	[%rd304], {%r78, %r79, %r80, %r81};
	add.s64 	%rd352, %rd352, %rd7;
	add.s64 	%rd305, %rd5, %rd352;
	add.s64 	%rd350, %rd350, %rd19;
	add.s64 	%rd349, %rd349, %rd19;
	add.s64 	%rd348, %rd348, %rd19;
	add.s64 	%rd347, %rd347, %rd19;
	add.s64 	%rd346, %rd346, %rd19;
	add.s64 	%rd345, %rd345, %rd19;
	add.s64 	%rd344, %rd344, %rd19;
	add.s64 	%rd343, %rd343, %rd19;
	setp.lt.u64 	%p32, %rd305, %rd37;
	@%p32 bra 	$L__BB0_24;
$L__BB0_25:                             // %_ZN6kvcove9transport4cuda8MoveManyIDv4_jLj4EEEyNS1_4LaneEPKT_PS5_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	and.b64  	%rd268, %rd267, -16;
	setp.ge.u64 	%p33, %rd352, %rd37;
	@%p33 bra 	$L__BB0_28;
                                        //   in Loop: Header=BB0_6 Depth=1
	shl.b64 	%rd353, %rd352, 4;
$L__BB0_27:                             // %for.body.i37.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd306, %rd106, %rd353;
	ld.v4.u32 	{%r82, %r83, %r84, %r85}, [%rd306];
	add.s64 	%rd307, %rd105, %rd353;
	st.v4.u32 	[%rd307], {%r82, %r83, %r84, %r85};
	add.s64 	%rd352, %rd352, %rd4;
	add.s64 	%rd353, %rd353, %rd13;
	setp.lt.u64 	%p34, %rd352, %rd37;
	@%p34 bra 	$L__BB0_27;
$L__BB0_28:                             // %_ZN6kvcove9transport4cuda9MoveWordsIDv4_jEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	or.b64  	%rd38, %rd268, %rd36;
	add.s64 	%rd138, %rd38, %rd32;
	add.s64 	%rd139, %rd38, %rd33;
	sub.s64 	%rd140, %rd34, %rd38;
	setp.ge.u64 	%p35, %rd6, %rd140;
	mov.u64 	%rd356, %rd3;
	@%p35 bra 	$L__BB0_31;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd141, %rd139, %rd11;
	add.s64 	%rd142, %rd139, %rd5;
	add.s64 	%rd143, %rd139, %rd4;
	add.s64 	%rd144, %rd138, %rd11;
	add.s64 	%rd145, %rd138, %rd5;
	add.s64 	%rd146, %rd138, %rd4;
	mov.u64 	%rd356, %rd3;
$L__BB0_30:                             // %for.body.i.i75.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd308, %rd138, %rd356;
	ld.u8 	%rs24, [%rd308];
	add.s64 	%rd309, %rd146, %rd356;
	ld.u8 	%rs25, [%rd309];
	add.s64 	%rd310, %rd144, %rd356;
	ld.u8 	%rs26, [%rd310];
	add.s64 	%rd311, %rd145, %rd356;
	ld.u8 	%rs27, [%rd311];
	add.s64 	%rd312, %rd139, %rd356;
	st.u8 	[%rd312], %rs24;
	add.s64 	%rd313, %rd143, %rd356;
	st.u8 	[%rd313], %rs25;
	add.s64 	%rd314, %rd141, %rd356;
	st.u8 	[%rd314], %rs26;
	add.s64 	%rd315, %rd142, %rd356;
	st.u8 	[%rd315], %rs27;
	add.s64 	%rd356, %rd356, %rd7;
	add.s64 	%rd316, %rd5, %rd356;
	setp.lt.u64 	%p36, %rd316, %rd140;
	@%p36 bra 	$L__BB0_30;
$L__BB0_31:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i63.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p37, %rd356, %rd140;
	@%p37 bra 	$L__BB0_53;
$L__BB0_32:                             // %for.body.i66.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd317, %rd138, %rd356;
	ld.u8 	%rs28, [%rd317];
	add.s64 	%rd318, %rd139, %rd356;
	st.u8 	[%rd318], %rs28;
	add.s64 	%rd356, %rd356, %rd4;
	setp.lt.u64 	%p38, %rd356, %rd140;
	@%p38 bra 	$L__BB0_32;
	bra.uni 	$L__BB0_53;
$L__BB0_34:                             // %if.then3.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	neg.s64 	%rd237, %rd32;
	and.b64  	%rd238, %rd237, 3;
	min.u64 	%rd152, %rd238, %rd34;
	setp.le.u64 	%p15, %rd152, %rd3;
	@%p15 bra 	$L__BB0_37;
                                        //   in Loop: Header=BB0_6 Depth=1
	mov.u64 	%rd358, %rd3;
$L__BB0_36:                             // %for.body.i.i45.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd241, %rd32, %rd358;
	ld.u8 	%rs13, [%rd241];
	add.s64 	%rd242, %rd33, %rd358;
	st.u8 	[%rd242], %rs13;
	add.s64 	%rd358, %rd358, %rd4;
	setp.lt.u64 	%p16, %rd358, %rd152;
	@%p16 bra 	$L__BB0_36;
$L__BB0_37:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i37.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	sub.s64 	%rd239, %rd34, %rd152;
	shr.u64 	%rd153, %rd239, 2;
	add.s64 	%rd160, %rd152, %rd32;
	add.s64 	%rd159, %rd152, %rd33;
	setp.ge.u64 	%p17, %rd6, %rd153;
	mov.u64 	%rd368, %rd3;
	@%p17 bra 	$L__BB0_40;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd366, %rd159, %rd10;
	add.s64 	%rd365, %rd159, %rd14;
	add.s64 	%rd364, %rd159, %rd7;
	add.s64 	%rd362, %rd160, %rd10;
	add.s64 	%rd361, %rd160, %rd14;
	add.s64 	%rd360, %rd160, %rd7;
	mov.u64 	%rd359, %rd160;
	mov.u64 	%rd363, %rd159;
	mov.u64 	%rd368, %rd3;
$L__BB0_39:                             // %for.body.i.i47.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd243, %rd359, %rd12;
	ld.u32 	%r29, [%rd243];
	add.s64 	%rd244, %rd360, %rd12;
	ld.u32 	%r30, [%rd244];
	add.s64 	%rd245, %rd362, %rd12;
	ld.u32 	%r31, [%rd245];
	add.s64 	%rd246, %rd361, %rd12;
	ld.u32 	%r32, [%rd246];
	add.s64 	%rd247, %rd363, %rd12;
	st.u32 	[%rd247], %r29;
	add.s64 	%rd248, %rd364, %rd12;
	st.u32 	[%rd248], %r30;
	add.s64 	%rd249, %rd366, %rd12;
	st.u32 	[%rd249], %r31;
	add.s64 	%rd250, %rd365, %rd12;
	st.u32 	[%rd250], %r32;
	add.s64 	%rd368, %rd368, %rd7;
	add.s64 	%rd251, %rd5, %rd368;
	add.s64 	%rd366, %rd366, %rd13;
	add.s64 	%rd365, %rd365, %rd13;
	add.s64 	%rd364, %rd364, %rd13;
	add.s64 	%rd363, %rd363, %rd13;
	add.s64 	%rd362, %rd362, %rd13;
	add.s64 	%rd361, %rd361, %rd13;
	add.s64 	%rd360, %rd360, %rd13;
	add.s64 	%rd359, %rd359, %rd13;
	setp.lt.u64 	%p18, %rd251, %rd153;
	@%p18 bra 	$L__BB0_39;
$L__BB0_40:                             // %_ZN6kvcove9transport4cuda8MoveManyIjLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	and.b64  	%rd240, %rd239, -4;
	setp.ge.u64 	%p19, %rd368, %rd153;
	@%p19 bra 	$L__BB0_43;
                                        //   in Loop: Header=BB0_6 Depth=1
	shl.b64 	%rd369, %rd368, 2;
$L__BB0_42:                             // %for.body.i38.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd252, %rd160, %rd369;
	ld.u32 	%r33, [%rd252];
	add.s64 	%rd253, %rd159, %rd369;
	st.u32 	[%rd253], %r33;
	add.s64 	%rd368, %rd368, %rd4;
	add.s64 	%rd369, %rd369, %rd7;
	setp.lt.u64 	%p20, %rd368, %rd153;
	@%p20 bra 	$L__BB0_42;
$L__BB0_43:                             // %_ZN6kvcove9transport4cuda9MoveWordsIjEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	or.b64  	%rd154, %rd240, %rd152;
	add.s64 	%rd191, %rd154, %rd32;
	add.s64 	%rd192, %rd154, %rd33;
	sub.s64 	%rd193, %rd34, %rd154;
	setp.ge.u64 	%p21, %rd6, %rd193;
	mov.u64 	%rd372, %rd3;
	@%p21 bra 	$L__BB0_46;
                                        //   in Loop: Header=BB0_6 Depth=1
	add.s64 	%rd194, %rd192, %rd11;
	add.s64 	%rd195, %rd192, %rd5;
	add.s64 	%rd196, %rd192, %rd4;
	add.s64 	%rd197, %rd191, %rd11;
	add.s64 	%rd198, %rd191, %rd5;
	add.s64 	%rd199, %rd191, %rd4;
	mov.u64 	%rd372, %rd3;
$L__BB0_45:                             // %for.body.i.i78.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd254, %rd191, %rd372;
	ld.u8 	%rs14, [%rd254];
	add.s64 	%rd255, %rd199, %rd372;
	ld.u8 	%rs15, [%rd255];
	add.s64 	%rd256, %rd197, %rd372;
	ld.u8 	%rs16, [%rd256];
	add.s64 	%rd257, %rd198, %rd372;
	ld.u8 	%rs17, [%rd257];
	add.s64 	%rd258, %rd192, %rd372;
	st.u8 	[%rd258], %rs14;
	add.s64 	%rd259, %rd196, %rd372;
	st.u8 	[%rd259], %rs15;
	add.s64 	%rd260, %rd194, %rd372;
	st.u8 	[%rd260], %rs16;
	add.s64 	%rd261, %rd195, %rd372;
	st.u8 	[%rd261], %rs17;
	add.s64 	%rd372, %rd372, %rd7;
	add.s64 	%rd262, %rd5, %rd372;
	setp.lt.u64 	%p22, %rd262, %rd193;
	@%p22 bra 	$L__BB0_45;
$L__BB0_46:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i66.i.i.i
                                        //   in Loop: Header=BB0_6 Depth=1
	setp.ge.u64 	%p23, %rd372, %rd193;
	@%p23 bra 	$L__BB0_53;
$L__BB0_47:                             // %for.body.i69.i.i.i
                                        //   Parent Loop BB0_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd263, %rd191, %rd372;
	ld.u8 	%rs18, [%rd263];
	add.s64 	%rd264, %rd192, %rd372;
	st.u8 	[%rd264], %rs18;
	add.s64 	%rd372, %rd372, %rd4;
	setp.lt.u64 	%p24, %rd372, %rd193;
	@%p24 bra 	$L__BB0_47;
	bra.uni 	$L__BB0_53;
$L__BB0_54:                             // %_ZN6kvcove9transport4cuda8MoveRunsENS1_4LaneEPKNS1_7MoveRunEj.exit
	ret;
                                        // -- End function
}
	// .globl	kvcove_gather           // -- Begin function kvcove_gather
.visible .entry kvcove_gather(
	.param .u64 kvcove_gather_param_0,
	.param .u32 kvcove_gather_param_1
)                                       // @kvcove_gather
{
	.reg .pred 	%p<40>;
	.reg .b16 	%rs<29>;
	.reg .b32 	%r<88>;
	.reg .b64 	%rd<377>;

	ld.param.u32 	%r18, [kvcove_gather_param_1];
	setp.eq.s32 	%p1, %r18, 0;
	@%p1 bra 	$L__BB1_54;
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r19, %ntid.x;
	min.u32 	%r4, %r19, 32;
	cvt.u16.u32 	%rs3, %r19;
	cvt.u16.u32 	%rs1, %r4;
	div.u16 	%rs4, %rs3, %rs1;
	cvt.u32.u16 	%r5, %rs4;
	mul.lo.s32 	%r20, %r4, %r5;
	setp.ge.u32 	%p2, %r1, %r20;
	@%p2 bra 	$L__BB1_54;
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %nctaid.x;
	cvt.u16.u32 	%rs5, %r1;
	div.u16 	%rs6, %rs5, %rs1;
	cvt.u32.u16 	%r22, %rs6;
	mad.lo.s32 	%r87, %r2, %r5, %r22;
	mul.lo.s32 	%r7, %r3, %r5;
	setp.le.u32 	%p3, %r7, %r18;
	mov.b32 	%r86, 1;
	@%p3 bra 	$L__BB1_4;
	div.u32 	%r86, %r7, %r18;
$L__BB1_4:                              // %cond.end20.i
	mul.lo.s32 	%r10, %r86, %r18;
	setp.ge.u32 	%p4, %r87, %r10;
	@%p4 bra 	$L__BB1_54;
	ld.param.u64 	%rd216, [kvcove_gather_param_0];
	mul.lo.s16 	%rs7, %rs6, %rs1;
	cvta.to.global.u64 	%rd1, %rd216;
	sub.s16 	%rs2, %rs5, %rs7;
	cvt.u64.u32 	%rd2, %r86;
	cvt.u64.u16 	%rd3, %rs2;
	cvt.u64.u32 	%rd4, %r4;
	mul.wide.u32 	%rd5, %r4, 3;
	add.s64 	%rd6, %rd5, %rd3;
	mul.wide.u32 	%rd7, %r4, 4;
	mul.wide.u32 	%rd8, %r4, 7;
	add.s64 	%rd9, %rd6, %rd7;
	mul.wide.u32 	%rd10, %r4, 8;
	mul.wide.u32 	%rd11, %r4, 2;
	cvt.u32.u16 	%r23, %rs2;
	mul.wide.u32 	%rd12, %r23, 4;
	mul.wide.u32 	%rd13, %r4, 16;
	mul.wide.u32 	%rd14, %r4, 12;
	mul.wide.u32 	%rd15, %r23, 16;
	mul.wide.u32 	%rd16, %r4, 32;
	mul.wide.u32 	%rd17, %r4, 128;
	mul.wide.u32 	%rd18, %r4, 48;
	mul.wide.u32 	%rd19, %r4, 64;
	mul.wide.u32 	%rd20, %r4, 80;
	mul.wide.u32 	%rd21, %r4, 96;
	mul.wide.u32 	%rd22, %r4, 112;
	setp.eq.s32 	%p5, %r86, 1;
	bra.uni 	$L__BB1_6;
$L__BB1_53:                             // %cleanup.i
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s32 	%r87, %r87, %r7;
	setp.lt.u32 	%p39, %r87, %r10;
	@%p39 bra 	$L__BB1_6;
	bra.uni 	$L__BB1_54;
$L__BB1_6:                              // %for.body.i
                                        // =>This Loop Header: Depth=1
                                        //     Child Loop BB1_50 Depth 2
                                        //     Child Loop BB1_52 Depth 2
                                        //     Child Loop BB1_36 Depth 2
                                        //     Child Loop BB1_39 Depth 2
                                        //     Child Loop BB1_42 Depth 2
                                        //     Child Loop BB1_45 Depth 2
                                        //     Child Loop BB1_47 Depth 2
                                        //     Child Loop BB1_15 Depth 2
                                        //     Child Loop BB1_17 Depth 2
                                        //     Child Loop BB1_20 Depth 2
                                        //     Child Loop BB1_24 Depth 2
                                        //     Child Loop BB1_27 Depth 2
                                        //     Child Loop BB1_30 Depth 2
                                        //     Child Loop BB1_32 Depth 2
	div.u32 	%r15, %r87, %r86;
	mul.wide.u32 	%rd217, %r15, 24;
	add.s64 	%rd218, %rd1, %rd217;
	ld.global.u64 	%rd25, [%rd218+16];
	mov.u64 	%rd320, %rd25;
	@%p5 bra 	$L__BB1_11;
                                        //   in Loop: Header=BB1_6 Depth=1
	and.b64  	%rd219, %rd25, -4294967296;
	setp.ne.s64 	%p6, %rd219, 0;
	@%p6 bra 	$L__BB1_9;
	bra.uni 	$L__BB1_8;
$L__BB1_9:                              //   in Loop: Header=BB1_6 Depth=1
	div.u64 	%rd319, %rd25, %rd2;
	bra.uni 	$L__BB1_10;
$L__BB1_8:                              //   in Loop: Header=BB1_6 Depth=1
	cvt.u32.u64 	%r24, %rd2;
	cvt.u32.u64 	%r25, %rd25;
	div.u32 	%r26, %r25, %r24;
	cvt.u64.u32 	%rd319, %r26;
$L__BB1_10:                             //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd220, %rd319, 15;
	and.b64  	%rd320, %rd220, -16;
$L__BB1_11:                             // %cond.end33.i
                                        //   in Loop: Header=BB1_6 Depth=1
	mul.lo.s32 	%r27, %r15, %r86;
	sub.s32 	%r16, %r87, %r27;
	cvt.u64.u32 	%rd221, %r16;
	mul.lo.s64 	%rd31, %rd320, %rd221;
	setp.le.u64 	%p7, %rd25, %rd31;
	@%p7 bra 	$L__BB1_53;
                                        //   in Loop: Header=BB1_6 Depth=1
	ld.global.u64 	%rd23, [%rd218];
	ld.global.u64 	%rd24, [%rd218+8];
	add.s32 	%r28, %r16, 1;
	setp.eq.s32 	%p8, %r28, %r86;
	sub.s64 	%rd222, %rd25, %rd31;
	add.s64 	%rd32, %rd31, %rd23;
	add.s64 	%rd33, %rd31, %rd24;
	min.u64 	%rd223, %rd222, %rd320;
	selp.b64 	%rd34, %rd222, %rd223, %p8;
	xor.b64  	%rd35, %rd33, %rd32;
	and.b64  	%rd224, %rd35, 15;
	setp.ne.s64 	%p9, %rd224, 0;
	@%p9 bra 	$L__BB1_33;
	bra.uni 	$L__BB1_13;
$L__BB1_33:                             // %if.else.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	and.b64  	%rd225, %rd35, 3;
	setp.ne.s64 	%p10, %rd225, 0;
	@%p10 bra 	$L__BB1_48;
	bra.uni 	$L__BB1_34;
$L__BB1_48:                             // %if.else5.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p11, %rd6, %rd34;
	mov.u64 	%rd375, %rd3;
	@%p11 bra 	$L__BB1_51;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd205, %rd33, %rd11;
	add.s64 	%rd206, %rd33, %rd5;
	add.s64 	%rd207, %rd33, %rd4;
	add.s64 	%rd208, %rd32, %rd11;
	add.s64 	%rd209, %rd32, %rd5;
	add.s64 	%rd210, %rd32, %rd4;
	mov.u64 	%rd375, %rd3;
$L__BB1_50:                             // %for.body.i.i70.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd226, %rd32, %rd375;
	ld.u8 	%rs8, [%rd226];
	add.s64 	%rd227, %rd210, %rd375;
	ld.u8 	%rs9, [%rd227];
	add.s64 	%rd228, %rd208, %rd375;
	ld.u8 	%rs10, [%rd228];
	add.s64 	%rd229, %rd209, %rd375;
	ld.u8 	%rs11, [%rd229];
	add.s64 	%rd230, %rd33, %rd375;
	st.u8 	[%rd230], %rs8;
	add.s64 	%rd231, %rd207, %rd375;
	st.u8 	[%rd231], %rs9;
	add.s64 	%rd232, %rd205, %rd375;
	st.u8 	[%rd232], %rs10;
	add.s64 	%rd233, %rd206, %rd375;
	st.u8 	[%rd233], %rs11;
	add.s64 	%rd375, %rd375, %rd7;
	add.s64 	%rd234, %rd5, %rd375;
	setp.lt.u64 	%p12, %rd234, %rd34;
	@%p12 bra 	$L__BB1_50;
$L__BB1_51:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p13, %rd375, %rd34;
	@%p13 bra 	$L__BB1_53;
$L__BB1_52:                             // %for.body.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd235, %rd32, %rd375;
	ld.u8 	%rs12, [%rd235];
	add.s64 	%rd236, %rd33, %rd375;
	st.u8 	[%rd236], %rs12;
	add.s64 	%rd375, %rd375, %rd4;
	setp.lt.u64 	%p14, %rd375, %rd34;
	@%p14 bra 	$L__BB1_52;
	bra.uni 	$L__BB1_53;
$L__BB1_13:                             // %if.then.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	neg.s64 	%rd265, %rd32;
	and.b64  	%rd266, %rd265, 15;
	min.u64 	%rd36, %rd266, %rd34;
	setp.ge.u64 	%p25, %rd6, %rd36;
	mov.u64 	%rd322, %rd3;
	@%p25 bra 	$L__BB1_16;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd39, %rd33, %rd11;
	add.s64 	%rd40, %rd33, %rd5;
	add.s64 	%rd41, %rd33, %rd4;
	add.s64 	%rd42, %rd32, %rd11;
	add.s64 	%rd43, %rd32, %rd5;
	add.s64 	%rd44, %rd32, %rd4;
	mov.u64 	%rd322, %rd3;
$L__BB1_15:                             // %for.body.i.i.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd269, %rd32, %rd322;
	ld.u8 	%rs19, [%rd269];
	add.s64 	%rd270, %rd44, %rd322;
	ld.u8 	%rs20, [%rd270];
	add.s64 	%rd271, %rd42, %rd322;
	ld.u8 	%rs21, [%rd271];
	add.s64 	%rd272, %rd43, %rd322;
	ld.u8 	%rs22, [%rd272];
	add.s64 	%rd273, %rd33, %rd322;
	st.u8 	[%rd273], %rs19;
	add.s64 	%rd274, %rd41, %rd322;
	st.u8 	[%rd274], %rs20;
	add.s64 	%rd275, %rd39, %rd322;
	st.u8 	[%rd275], %rs21;
	add.s64 	%rd276, %rd40, %rd322;
	st.u8 	[%rd276], %rs22;
	add.s64 	%rd322, %rd322, %rd7;
	add.s64 	%rd277, %rd5, %rd322;
	setp.lt.u64 	%p26, %rd277, %rd36;
	@%p26 bra 	$L__BB1_15;
$L__BB1_16:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p27, %rd322, %rd36;
	@%p27 bra 	$L__BB1_18;
$L__BB1_17:                             // %for.body.i.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd278, %rd32, %rd322;
	ld.u8 	%rs23, [%rd278];
	add.s64 	%rd279, %rd33, %rd322;
	st.u8 	[%rd279], %rs23;
	add.s64 	%rd322, %rd322, %rd4;
	setp.lt.u64 	%p28, %rd322, %rd36;
	@%p28 bra 	$L__BB1_17;
$L__BB1_18:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	sub.s64 	%rd267, %rd34, %rd36;
	shr.u64 	%rd37, %rd267, 4;
	add.s64 	%rd106, %rd36, %rd32;
	add.s64 	%rd105, %rd36, %rd33;
	setp.ge.u64 	%p29, %rd9, %rd37;
	mov.u64 	%rd341, %rd6;
	mov.u64 	%rd352, %rd3;
	@%p29 bra 	$L__BB1_22;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd339, %rd105, %rd16;
	add.s64 	%rd338, %rd105, %rd18;
	add.s64 	%rd337, %rd105, %rd19;
	add.s64 	%rd336, %rd105, %rd20;
	add.s64 	%rd335, %rd105, %rd21;
	add.s64 	%rd334, %rd105, %rd22;
	add.s64 	%rd333, %rd105, %rd13;
	add.s64 	%rd331, %rd106, %rd16;
	add.s64 	%rd330, %rd106, %rd18;
	add.s64 	%rd329, %rd106, %rd19;
	add.s64 	%rd328, %rd106, %rd20;
	add.s64 	%rd327, %rd106, %rd21;
	add.s64 	%rd326, %rd106, %rd22;
	add.s64 	%rd325, %rd106, %rd13;
	mov.u64 	%rd324, %rd106;
	mov.u64 	%rd332, %rd105;
	mov.u64 	%rd352, %rd3;
$L__BB1_20:                             // %for.body.i.i44.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd280, %rd324, %rd15;
	ld.v4.u32 	{%r34, %r35, %r36, %r37}, [%rd280];
	add.s64 	%rd281, %rd325, %rd15;
	ld.v4.u32 	{%r38, %r39, %r40, %r41}, [%rd281];
	add.s64 	%rd282, %rd331, %rd15;
	ld.v4.u32 	{%r42, %r43, %r44, %r45}, [%rd282];
	add.s64 	%rd283, %rd330, %rd15;
	ld.v4.u32 	{%r46, %r47, %r48, %r49}, [%rd283];
	add.s64 	%rd284, %rd329, %rd15;
	ld.v4.u32 	{%r50, %r51, %r52, %r53}, [%rd284];
	add.s64 	%rd285, %rd328, %rd15;
	ld.v4.u32 	{%r54, %r55, %r56, %r57}, [%rd285];
	add.s64 	%rd286, %rd327, %rd15;
	ld.v4.u32 	{%r58, %r59, %r60, %r61}, [%rd286];
	add.s64 	%rd287, %rd326, %rd15;
	ld.v4.u32 	{%r62, %r63, %r64, %r65}, [%rd287];
	add.s64 	%rd288, %rd332, %rd15;
	st.v4.u32 	[%rd288], {%r34, %r35, %r36, %r37};
	add.s64 	%rd289, %rd333, %rd15;
	st.v4.u32 	[%rd289], {%r38, %r39, %r40, %r41};
	add.s64 	%rd290, %rd339, %rd15;
	st.v4.u32 	[%rd290], {%r42, %r43, %r44, %r45};
	add.s64 	%rd291, %rd338, %rd15;
	st.v4.u32 	[%rd291], {%r46, %r47, %r48, %r49};
	add.s64 	%rd292, %rd337, %rd15;
	st.v4.u32 	[%rd292], {%r50, %r51, %r52, %r53};
	add.s64 	%rd293, %rd336, %rd15;
	st.v4.u32 	[%rd293], {%r54, %r55, %r56, %r57};
	add.s64 	%rd294, %rd335, %rd15;
	st.v4.u32 	[%rd294], {%r58, %r59, %r60, %r61};
	add.s64 	%rd295, %rd334, %rd15;
	st.v4.u32 	[%rd295], {%r62, %r63, %r64, %r65};
	add.s64 	%rd352, %rd352, %rd10;
	add.s64 	%rd296, %rd8, %rd352;
	add.s64 	%rd339, %rd339, %rd17;
	add.s64 	%rd338, %rd338, %rd17;
	add.s64 	%rd337, %rd337, %rd17;
	add.s64 	%rd336, %rd336, %rd17;
	add.s64 	%rd335, %rd335, %rd17;
	add.s64 	%rd334, %rd334, %rd17;
	add.s64 	%rd333, %rd333, %rd17;
	add.s64 	%rd332, %rd332, %rd17;
	add.s64 	%rd331, %rd331, %rd17;
	add.s64 	%rd330, %rd330, %rd17;
	add.s64 	%rd329, %rd329, %rd17;
	add.s64 	%rd328, %rd328, %rd17;
	add.s64 	%rd327, %rd327, %rd17;
	add.s64 	%rd326, %rd326, %rd17;
	add.s64 	%rd325, %rd325, %rd17;
	add.s64 	%rd324, %rd324, %rd17;
	setp.lt.u64 	%p30, %rd296, %rd37;
	@%p30 bra 	$L__BB1_20;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd341, %rd5, %rd352;
$L__BB1_22:                             // %_ZN6kvcove9transport4cuda8MoveManyIDv4_jLj8EEEyNS1_4LaneEPKT_PS5_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p31, %rd341, %rd37;
	@%p31 bra 	$L__BB1_25;
                                        //   in Loop: Header=BB1_6 Depth=1
	shl.b64 	%rd107, %rd352, 4;
	add.s64 	%rd350, %rd105, %rd16;
	add.s64 	%rd349, %rd105, %rd18;
	add.s64 	%rd348, %rd105, %rd13;
	add.s64 	%rd346, %rd106, %rd16;
	add.s64 	%rd345, %rd106, %rd18;
	add.s64 	%rd344, %rd106, %rd13;
	mov.u64 	%rd343, %rd106;
	mov.u64 	%rd347, %rd105;
$L__BB1_24:                             // %for.body.i27.i.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd297, %rd343, %rd107;
	ld.v4.u32 	{%r66, %r67, %r68, %r69}, [%rd297];
	add.s64 	%rd298, %rd344, %rd107;
	ld.v4.u32 	{%r70, %r71, %r72, %r73}, [%rd298];
	add.s64 	%rd299, %rd346, %rd107;
	ld.v4.u32 	{%r74, %r75, %r76, %r77}, [%rd299];
	add.s64 	%rd300, %rd345, %rd107;
	ld.v4.u32 	{%r78, %r79, %r80, %r81}, [%rd300];
	add.s64 	%rd301, %rd347, %rd107;
	st.v4.u32 	[%rd301], {%r66, %r67, %r68, %r69};
	add.s64 	%rd302, %rd348, %rd107;
	st.v4.u32 	[%rd302], {%r70, %r71, %r72, %r73};
	add.s64 	%rd303, %rd350, %rd107;
	st.v4.u32 	[%rd303], {%r74, %r75, %r76, %r77};
	add.s64 	%rd304, %rd349, %rd107;
	st.v4.u32 	[%rd304], {%r78, %r79, %r80, %r81};
	add.s64 	%rd352, %rd352, %rd7;
	add.s64 	%rd305, %rd5, %rd352;
	add.s64 	%rd350, %rd350, %rd19;
	add.s64 	%rd349, %rd349, %rd19;
	add.s64 	%rd348, %rd348, %rd19;
	add.s64 	%rd347, %rd347, %rd19;
	add.s64 	%rd346, %rd346, %rd19;
	add.s64 	%rd345, %rd345, %rd19;
	add.s64 	%rd344, %rd344, %rd19;
	add.s64 	%rd343, %rd343, %rd19;
	setp.lt.u64 	%p32, %rd305, %rd37;
	@%p32 bra 	$L__BB1_24;
$L__BB1_25:                             // %_ZN6kvcove9transport4cuda8MoveManyIDv4_jLj4EEEyNS1_4LaneEPKT_PS5_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	and.b64  	%rd268, %rd267, -16;
	setp.ge.u64 	%p33, %rd352, %rd37;
	@%p33 bra 	$L__BB1_28;
                                        //   in Loop: Header=BB1_6 Depth=1
	shl.b64 	%rd353, %rd352, 4;
$L__BB1_27:                             // %for.body.i37.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd306, %rd106, %rd353;
	ld.v4.u32 	{%r82, %r83, %r84, %r85}, [%rd306];
	add.s64 	%rd307, %rd105, %rd353;
	st.v4.u32 	[%rd307], {%r82, %r83, %r84, %r85};
	add.s64 	%rd352, %rd352, %rd4;
	add.s64 	%rd353, %rd353, %rd13;
	setp.lt.u64 	%p34, %rd352, %rd37;
	@%p34 bra 	$L__BB1_27;
$L__BB1_28:                             // %_ZN6kvcove9transport4cuda9MoveWordsIDv4_jEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	or.b64  	%rd38, %rd268, %rd36;
	add.s64 	%rd138, %rd38, %rd32;
	add.s64 	%rd139, %rd38, %rd33;
	sub.s64 	%rd140, %rd34, %rd38;
	setp.ge.u64 	%p35, %rd6, %rd140;
	mov.u64 	%rd356, %rd3;
	@%p35 bra 	$L__BB1_31;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd141, %rd139, %rd11;
	add.s64 	%rd142, %rd139, %rd5;
	add.s64 	%rd143, %rd139, %rd4;
	add.s64 	%rd144, %rd138, %rd11;
	add.s64 	%rd145, %rd138, %rd5;
	add.s64 	%rd146, %rd138, %rd4;
	mov.u64 	%rd356, %rd3;
$L__BB1_30:                             // %for.body.i.i75.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd308, %rd138, %rd356;
	ld.u8 	%rs24, [%rd308];
	add.s64 	%rd309, %rd146, %rd356;
	ld.u8 	%rs25, [%rd309];
	add.s64 	%rd310, %rd144, %rd356;
	ld.u8 	%rs26, [%rd310];
	add.s64 	%rd311, %rd145, %rd356;
	ld.u8 	%rs27, [%rd311];
	add.s64 	%rd312, %rd139, %rd356;
	st.u8 	[%rd312], %rs24;
	add.s64 	%rd313, %rd143, %rd356;
	st.u8 	[%rd313], %rs25;
	add.s64 	%rd314, %rd141, %rd356;
	st.u8 	[%rd314], %rs26;
	add.s64 	%rd315, %rd142, %rd356;
	st.u8 	[%rd315], %rs27;
	add.s64 	%rd356, %rd356, %rd7;
	add.s64 	%rd316, %rd5, %rd356;
	setp.lt.u64 	%p36, %rd316, %rd140;
	@%p36 bra 	$L__BB1_30;
$L__BB1_31:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i63.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p37, %rd356, %rd140;
	@%p37 bra 	$L__BB1_53;
$L__BB1_32:                             // %for.body.i66.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd317, %rd138, %rd356;
	ld.u8 	%rs28, [%rd317];
	add.s64 	%rd318, %rd139, %rd356;
	st.u8 	[%rd318], %rs28;
	add.s64 	%rd356, %rd356, %rd4;
	setp.lt.u64 	%p38, %rd356, %rd140;
	@%p38 bra 	$L__BB1_32;
	bra.uni 	$L__BB1_53;
$L__BB1_34:                             // %if.then3.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	neg.s64 	%rd237, %rd32;
	and.b64  	%rd238, %rd237, 3;
	min.u64 	%rd152, %rd238, %rd34;
	setp.le.u64 	%p15, %rd152, %rd3;
	@%p15 bra 	$L__BB1_37;
                                        //   in Loop: Header=BB1_6 Depth=1
	mov.u64 	%rd358, %rd3;
$L__BB1_36:                             // %for.body.i.i45.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd241, %rd32, %rd358;
	ld.u8 	%rs13, [%rd241];
	add.s64 	%rd242, %rd33, %rd358;
	st.u8 	[%rd242], %rs13;
	add.s64 	%rd358, %rd358, %rd4;
	setp.lt.u64 	%p16, %rd358, %rd152;
	@%p16 bra 	$L__BB1_36;
$L__BB1_37:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i37.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	sub.s64 	%rd239, %rd34, %rd152;
	shr.u64 	%rd153, %rd239, 2;
	add.s64 	%rd160, %rd152, %rd32;
	add.s64 	%rd159, %rd152, %rd33;
	setp.ge.u64 	%p17, %rd6, %rd153;
	mov.u64 	%rd368, %rd3;
	@%p17 bra 	$L__BB1_40;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd366, %rd159, %rd10;
	add.s64 	%rd365, %rd159, %rd14;
	add.s64 	%rd364, %rd159, %rd7;
	add.s64 	%rd362, %rd160, %rd10;
	add.s64 	%rd361, %rd160, %rd14;
	add.s64 	%rd360, %rd160, %rd7;
	mov.u64 	%rd359, %rd160;
	mov.u64 	%rd363, %rd159;
	mov.u64 	%rd368, %rd3;
$L__BB1_39:                             // %for.body.i.i47.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd243, %rd359, %rd12;
	ld.u32 	%r29, [%rd243];
	add.s64 	%rd244, %rd360, %rd12;
	ld.u32 	%r30, [%rd244];
	add.s64 	%rd245, %rd362, %rd12;
	ld.u32 	%r31, [%rd245];
	add.s64 	%rd246, %rd361, %rd12;
	ld.u32 	%r32, [%rd246];
	add.s64 	%rd247, %rd363, %rd12;
	st.u32 	[%rd247], %r29;
	add.s64 	%rd248, %rd364, %rd12;
	st.u32 	[%rd248], %r30;
	add.s64 	%rd249, %rd366, %rd12;
	st.u32 	[%rd249], %r31;
	add.s64 	%rd250, %rd365, %rd12;
	st.u32 	[%rd250], %r32;
	add.s64 	%rd368, %rd368, %rd7;
	add.s64 	%rd251, %rd5, %rd368;
	add.s64 	%rd366, %rd366, %rd13;
	add.s64 	%rd365, %rd365, %rd13;
	add.s64 	%rd364, %rd364, %rd13;
	add.s64 	%rd363, %rd363, %rd13;
	add.s64 	%rd362, %rd362, %rd13;
	add.s64 	%rd361, %rd361, %rd13;
	add.s64 	%rd360, %rd360, %rd13;
	add.s64 	%rd359, %rd359, %rd13;
	setp.lt.u64 	%p18, %rd251, %rd153;
	@%p18 bra 	$L__BB1_39;
$L__BB1_40:                             // %_ZN6kvcove9transport4cuda8MoveManyIjLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	and.b64  	%rd240, %rd239, -4;
	setp.ge.u64 	%p19, %rd368, %rd153;
	@%p19 bra 	$L__BB1_43;
                                        //   in Loop: Header=BB1_6 Depth=1
	shl.b64 	%rd369, %rd368, 2;
$L__BB1_42:                             // %for.body.i38.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd252, %rd160, %rd369;
	ld.u32 	%r33, [%rd252];
	add.s64 	%rd253, %rd159, %rd369;
	st.u32 	[%rd253], %r33;
	add.s64 	%rd368, %rd368, %rd4;
	add.s64 	%rd369, %rd369, %rd7;
	setp.lt.u64 	%p20, %rd368, %rd153;
	@%p20 bra 	$L__BB1_42;
$L__BB1_43:                             // %_ZN6kvcove9transport4cuda9MoveWordsIjEEvNS1_4LaneEyyy.exit.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	or.b64  	%rd154, %rd240, %rd152;
	add.s64 	%rd191, %rd154, %rd32;
	add.s64 	%rd192, %rd154, %rd33;
	sub.s64 	%rd193, %rd34, %rd154;
	setp.ge.u64 	%p21, %rd6, %rd193;
	mov.u64 	%rd372, %rd3;
	@%p21 bra 	$L__BB1_46;
                                        //   in Loop: Header=BB1_6 Depth=1
	add.s64 	%rd194, %rd192, %rd11;
	add.s64 	%rd195, %rd192, %rd5;
	add.s64 	%rd196, %rd192, %rd4;
	add.s64 	%rd197, %rd191, %rd11;
	add.s64 	%rd198, %rd191, %rd5;
	add.s64 	%rd199, %rd191, %rd4;
	mov.u64 	%rd372, %rd3;
$L__BB1_45:                             // %for.body.i.i78.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd254, %rd191, %rd372;
	ld.u8 	%rs14, [%rd254];
	add.s64 	%rd255, %rd199, %rd372;
	ld.u8 	%rs15, [%rd255];
	add.s64 	%rd256, %rd197, %rd372;
	ld.u8 	%rs16, [%rd256];
	add.s64 	%rd257, %rd198, %rd372;
	ld.u8 	%rs17, [%rd257];
	add.s64 	%rd258, %rd192, %rd372;
	st.u8 	[%rd258], %rs14;
	add.s64 	%rd259, %rd196, %rd372;
	st.u8 	[%rd259], %rs15;
	add.s64 	%rd260, %rd194, %rd372;
	st.u8 	[%rd260], %rs16;
	add.s64 	%rd261, %rd195, %rd372;
	st.u8 	[%rd261], %rs17;
	add.s64 	%rd372, %rd372, %rd7;
	add.s64 	%rd262, %rd5, %rd372;
	setp.lt.u64 	%p22, %rd262, %rd193;
	@%p22 bra 	$L__BB1_45;
$L__BB1_46:                             // %_ZN6kvcove9transport4cuda8MoveManyIhLj4EEEyNS1_4LaneEPKT_PS4_yy.exit.i66.i.i.i
                                        //   in Loop: Header=BB1_6 Depth=1
	setp.ge.u64 	%p23, %rd372, %rd193;
	@%p23 bra 	$L__BB1_53;
$L__BB1_47:                             // %for.body.i69.i.i.i
                                        //   Parent Loop BB1_6 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd263, %rd191, %rd372;
	ld.u8 	%rs18, [%rd263];
	add.s64 	%rd264, %rd192, %rd372;
	st.u8 	[%rd264], %rs18;
	add.s64 	%rd372, %rd372, %rd4;
	setp.lt.u64 	%p24, %rd372, %rd193;
	@%p24 bra 	$L__BB1_47;
	bra.uni 	$L__BB1_53;
$L__BB1_54:                             // %_ZN6kvcove9transport4cuda8MoveRunsENS1_4LaneEPKNS1_7MoveRunEj.exit
	ret;
                                        // -- End function
}
)ptx";

}  // namespace kvcove::transport::cuda
