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
	.reg .pred 	%p<31>;
	.reg .b16 	%rs<22>;
	.reg .b32 	%r<34>;
	.reg .b64 	%rd<264>;

	ld.param.u32 	%r5, [kvcove_scatter_param_1];
	mov.u32 	%r33, %ctaid.x;
	setp.ge.u32 	%p1, %r33, %r5;
	@%p1 bra 	$L__BB0_40;
	ld.param.u64 	%rd146, [kvcove_scatter_param_0];
	cvta.to.global.u64 	%rd1, %rd146;
	mov.u32 	%r2, %nctaid.x;
	mov.u32 	%r6, %ntid.x;
	mov.u32 	%r7, %tid.x;
	cvt.u64.u32 	%rd2, %r7;
	cvt.u64.u32 	%rd3, %r6;
	mul.wide.u32 	%rd4, %r6, 3;
	add.s64 	%rd5, %rd4, %rd2;
	mul.wide.u32 	%rd6, %r6, 4;
	mul.wide.u32 	%rd7, %r6, 2;
	mul.wide.u32 	%rd8, %r7, 4;
	mul.wide.u32 	%rd9, %r6, 12;
	mul.wide.u32 	%rd10, %r6, 16;
	mul.wide.u32 	%rd11, %r6, 8;
	mul.wide.u32 	%rd12, %r7, 16;
	mul.wide.u32 	%rd13, %r6, 48;
	mul.wide.u32 	%rd14, %r6, 64;
	mul.wide.u32 	%rd15, %r6, 32;
	bra.uni 	$L__BB0_2;
$L__BB0_39:                             // %if.end15.i
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s32 	%r33, %r33, %r2;
	setp.lt.u32 	%p30, %r33, %r5;
	@%p30 bra 	$L__BB0_2;
	bra.uni 	$L__BB0_40;
$L__BB0_2:                              // %for.body.i
                                        // =>This Loop Header: Depth=1
                                        //     Child Loop BB0_36 Depth 2
                                        //     Child Loop BB0_38 Depth 2
                                        //     Child Loop BB0_22 Depth 2
                                        //     Child Loop BB0_25 Depth 2
                                        //     Child Loop BB0_28 Depth 2
                                        //     Child Loop BB0_31 Depth 2
                                        //     Child Loop BB0_33 Depth 2
                                        //     Child Loop BB0_5 Depth 2
                                        //     Child Loop BB0_7 Depth 2
                                        //     Child Loop BB0_10 Depth 2
                                        //     Child Loop BB0_13 Depth 2
                                        //     Child Loop BB0_16 Depth 2
                                        //     Child Loop BB0_18 Depth 2
	mul.wide.u32 	%rd147, %r33, 24;
	add.s64 	%rd148, %rd1, %rd147;
	ld.global.u64 	%rd16, [%rd148];
	ld.global.u64 	%rd17, [%rd148+8];
	ld.global.u64 	%rd18, [%rd148+16];
	xor.b64  	%rd19, %rd17, %rd16;
	and.b64  	%rd149, %rd19, 15;
	setp.ne.s64 	%p2, %rd149, 0;
	@%p2 bra 	$L__BB0_19;
	bra.uni 	$L__BB0_3;
$L__BB0_19:                             // %if.else.i
                                        //   in Loop: Header=BB0_2 Depth=1
	and.b64  	%rd150, %rd19, 3;
	setp.ne.s64 	%p3, %rd150, 0;
	@%p3 bra 	$L__BB0_34;
	bra.uni 	$L__BB0_20;
$L__BB0_34:                             // %if.else13.i
                                        //   in Loop: Header=BB0_2 Depth=1
	setp.ge.u64 	%p4, %rd5, %rd18;
	mov.u64 	%rd262, %rd2;
	@%p4 bra 	$L__BB0_37;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd135, %rd16, %rd4;
	add.s64 	%rd136, %rd17, %rd7;
	add.s64 	%rd137, %rd17, %rd4;
	add.s64 	%rd138, %rd17, %rd3;
	add.s64 	%rd139, %rd16, %rd7;
	add.s64 	%rd140, %rd16, %rd3;
	mov.u64 	%rd262, %rd2;
$L__BB0_36:                             // %for.body.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd151, %rd16, %rd262;
	ld.u8 	%rs1, [%rd151];
	add.s64 	%rd152, %rd140, %rd262;
	ld.u8 	%rs2, [%rd152];
	add.s64 	%rd153, %rd139, %rd262;
	ld.u8 	%rs3, [%rd153];
	add.s64 	%rd154, %rd135, %rd262;
	ld.u8 	%rs4, [%rd154];
	add.s64 	%rd155, %rd17, %rd262;
	st.u8 	[%rd155], %rs1;
	add.s64 	%rd156, %rd138, %rd262;
	st.u8 	[%rd156], %rs2;
	add.s64 	%rd157, %rd136, %rd262;
	st.u8 	[%rd157], %rs3;
	add.s64 	%rd158, %rd137, %rd262;
	st.u8 	[%rd158], %rs4;
	add.s64 	%rd262, %rd262, %rd6;
	add.s64 	%rd159, %rd4, %rd262;
	setp.lt.u64 	%p5, %rd159, %rd18;
	@%p5 bra 	$L__BB0_36;
$L__BB0_37:                             // %for.cond35.preheader.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	setp.ge.u64 	%p6, %rd262, %rd18;
	@%p6 bra 	$L__BB0_39;
$L__BB0_38:                             // %for.body37.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd160, %rd16, %rd262;
	ld.u8 	%rs5, [%rd160];
	add.s64 	%rd161, %rd17, %rd262;
	st.u8 	[%rd161], %rs5;
	add.s64 	%rd262, %rd262, %rd3;
	setp.lt.u64 	%p7, %rd262, %rd18;
	@%p7 bra 	$L__BB0_38;
	bra.uni 	$L__BB0_39;
$L__BB0_3:                              // %if.then.i
                                        //   in Loop: Header=BB0_2 Depth=1
	neg.s64 	%rd190, %rd16;
	and.b64  	%rd191, %rd190, 15;
	min.u64 	%rd20, %rd191, %rd18;
	setp.ge.u64 	%p18, %rd5, %rd20;
	mov.u64 	%rd228, %rd2;
	@%p18 bra 	$L__BB0_6;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd23, %rd16, %rd4;
	add.s64 	%rd24, %rd17, %rd7;
	add.s64 	%rd25, %rd17, %rd4;
	add.s64 	%rd26, %rd17, %rd3;
	add.s64 	%rd27, %rd16, %rd7;
	add.s64 	%rd28, %rd16, %rd3;
	mov.u64 	%rd228, %rd2;
$L__BB0_5:                              // %for.body.i.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd194, %rd16, %rd228;
	ld.u8 	%rs12, [%rd194];
	add.s64 	%rd195, %rd28, %rd228;
	ld.u8 	%rs13, [%rd195];
	add.s64 	%rd196, %rd27, %rd228;
	ld.u8 	%rs14, [%rd196];
	add.s64 	%rd197, %rd23, %rd228;
	ld.u8 	%rs15, [%rd197];
	add.s64 	%rd198, %rd17, %rd228;
	st.u8 	[%rd198], %rs12;
	add.s64 	%rd199, %rd26, %rd228;
	st.u8 	[%rd199], %rs13;
	add.s64 	%rd200, %rd24, %rd228;
	st.u8 	[%rd200], %rs14;
	add.s64 	%rd201, %rd25, %rd228;
	st.u8 	[%rd201], %rs15;
	add.s64 	%rd228, %rd228, %rd6;
	add.s64 	%rd202, %rd4, %rd228;
	setp.lt.u64 	%p19, %rd202, %rd20;
	@%p19 bra 	$L__BB0_5;
$L__BB0_6:                              // %for.cond35.preheader.i.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	setp.ge.u64 	%p20, %rd228, %rd20;
	@%p20 bra 	$L__BB0_8;
$L__BB0_7:                              // %for.body37.i.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd203, %rd16, %rd228;
	ld.u8 	%rs16, [%rd203];
	add.s64 	%rd204, %rd17, %rd228;
	st.u8 	[%rd204], %rs16;
	add.s64 	%rd228, %rd228, %rd3;
	setp.lt.u64 	%p21, %rd228, %rd20;
	@%p21 bra 	$L__BB0_7;
$L__BB0_8:                              // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	sub.s64 	%rd192, %rd18, %rd20;
	shr.u64 	%rd21, %rd192, 4;
	add.s64 	%rd37, %rd20, %rd16;
	add.s64 	%rd36, %rd20, %rd17;
	setp.ge.u64 	%p22, %rd5, %rd21;
	mov.u64 	%rd239, %rd2;
	@%p22 bra 	$L__BB0_11;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd238, %rd37, %rd13;
	add.s64 	%rd237, %rd36, %rd15;
	add.s64 	%rd236, %rd36, %rd13;
	add.s64 	%rd235, %rd36, %rd10;
	add.s64 	%rd233, %rd37, %rd15;
	add.s64 	%rd232, %rd37, %rd10;
	mov.u64 	%rd231, %rd37;
	mov.u64 	%rd234, %rd36;
	mov.u64 	%rd239, %rd2;
$L__BB0_10:                             // %for.body.i46.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd205, %rd231, %rd12;
	ld.v4.u32 	{%r13, %r14, %r15, %r16}, [%rd205];
	add.s64 	%rd206, %rd232, %rd12;
	ld.v4.u32 	{%r17, %r18, %r19, %r20}, [%rd206];
	add.s64 	%rd207, %rd233, %rd12;
	ld.v4.u32 	{%r21, %r22, %r23, %r24}, [%rd207];
	add.s64 	%rd208, %rd238, %rd12;
	ld.v4.u32 	{%r25, %r26, %r27, %r28}, [%rd208];
	add.s64 	%rd209, %rd234, %rd12;
	st.v4.u32 	[%rd209], {%r13, %r14, %r15, %r16};
	add.s64 	%rd210, %rd235, %rd12;
	st.v4.u32 	[%rd210], {%r17, %r18, %r19, %r20};
	add.s64 	%rd211, %rd237, %rd12;
	st.v4.u32 	[%rd211], {%r21, %r22, %r23, %r24};
	add.s64 	%rd212, %rd236, %rd12;
	st.v4.u32 	[%rd212], {%r25, %r26, %r27, %r28};
	add.s64 	%rd239, %rd239, %rd6;
	add.s64 	%rd238, %rd238, %rd14;
	add.s64 	%rd213, %rd4, %rd239;
	add.s64 	%rd237, %rd237, %rd14;
	add.s64 	%rd236, %rd236, %rd14;
	add.s64 	%rd235, %rd235, %rd14;
	add.s64 	%rd234, %rd234, %rd14;
	add.s64 	%rd233, %rd233, %rd14;
	add.s64 	%rd232, %rd232, %rd14;
	add.s64 	%rd231, %rd231, %rd14;
	setp.lt.u64 	%p23, %rd213, %rd21;
	@%p23 bra 	$L__BB0_10;
$L__BB0_11:                             // %for.cond35.preheader.i35.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	and.b64  	%rd193, %rd192, -16;
	setp.ge.u64 	%p24, %rd239, %rd21;
	@%p24 bra 	$L__BB0_14;
                                        //   in Loop: Header=BB0_2 Depth=1
	shl.b64 	%rd240, %rd239, 4;
$L__BB0_13:                             // %for.body37.i38.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd214, %rd37, %rd240;
	ld.v4.u32 	{%r29, %r30, %r31, %r32}, [%rd214];
	add.s64 	%rd215, %rd36, %rd240;
	st.v4.u32 	[%rd215], {%r29, %r30, %r31, %r32};
	add.s64 	%rd239, %rd239, %rd3;
	add.s64 	%rd240, %rd240, %rd10;
	setp.lt.u64 	%p25, %rd239, %rd21;
	@%p25 bra 	$L__BB0_13;
$L__BB0_14:                             // %_ZN6kvcove9transport4cuda9MoveWordsIDv4_jEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	or.b64  	%rd22, %rd193, %rd20;
	add.s64 	%rd68, %rd22, %rd16;
	add.s64 	%rd69, %rd22, %rd17;
	sub.s64 	%rd70, %rd18, %rd22;
	setp.ge.u64 	%p26, %rd5, %rd70;
	mov.u64 	%rd243, %rd2;
	@%p26 bra 	$L__BB0_17;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd71, %rd68, %rd4;
	add.s64 	%rd72, %rd69, %rd7;
	add.s64 	%rd73, %rd69, %rd4;
	add.s64 	%rd74, %rd69, %rd3;
	add.s64 	%rd75, %rd68, %rd7;
	add.s64 	%rd76, %rd68, %rd3;
	mov.u64 	%rd243, %rd2;
$L__BB0_16:                             // %for.body.i79.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd216, %rd68, %rd243;
	ld.u8 	%rs17, [%rd216];
	add.s64 	%rd217, %rd76, %rd243;
	ld.u8 	%rs18, [%rd217];
	add.s64 	%rd218, %rd75, %rd243;
	ld.u8 	%rs19, [%rd218];
	add.s64 	%rd219, %rd71, %rd243;
	ld.u8 	%rs20, [%rd219];
	add.s64 	%rd220, %rd69, %rd243;
	st.u8 	[%rd220], %rs17;
	add.s64 	%rd221, %rd74, %rd243;
	st.u8 	[%rd221], %rs18;
	add.s64 	%rd222, %rd72, %rd243;
	st.u8 	[%rd222], %rs19;
	add.s64 	%rd223, %rd73, %rd243;
	st.u8 	[%rd223], %rs20;
	add.s64 	%rd243, %rd243, %rd6;
	add.s64 	%rd224, %rd4, %rd243;
	setp.lt.u64 	%p27, %rd224, %rd70;
	@%p27 bra 	$L__BB0_16;
$L__BB0_17:                             // %for.cond35.preheader.i67.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	setp.ge.u64 	%p28, %rd243, %rd70;
	@%p28 bra 	$L__BB0_39;
$L__BB0_18:                             // %for.body37.i70.i.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd225, %rd68, %rd243;
	ld.u8 	%rs21, [%rd225];
	add.s64 	%rd226, %rd69, %rd243;
	st.u8 	[%rd226], %rs21;
	add.s64 	%rd243, %rd243, %rd3;
	setp.lt.u64 	%p29, %rd243, %rd70;
	@%p29 bra 	$L__BB0_18;
	bra.uni 	$L__BB0_39;
$L__BB0_20:                             // %if.then11.i
                                        //   in Loop: Header=BB0_2 Depth=1
	neg.s64 	%rd162, %rd16;
	and.b64  	%rd163, %rd162, 3;
	min.u64 	%rd82, %rd163, %rd18;
	setp.le.u64 	%p8, %rd82, %rd2;
	@%p8 bra 	$L__BB0_23;
                                        //   in Loop: Header=BB0_2 Depth=1
	mov.u64 	%rd245, %rd2;
$L__BB0_22:                             // %for.body37.i.i112.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd166, %rd16, %rd245;
	ld.u8 	%rs6, [%rd166];
	add.s64 	%rd167, %rd17, %rd245;
	st.u8 	[%rd167], %rs6;
	add.s64 	%rd245, %rd245, %rd3;
	setp.lt.u64 	%p9, %rd245, %rd82;
	@%p9 bra 	$L__BB0_22;
$L__BB0_23:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i51.i
                                        //   in Loop: Header=BB0_2 Depth=1
	sub.s64 	%rd164, %rd18, %rd82;
	shr.u64 	%rd83, %rd164, 2;
	add.s64 	%rd90, %rd82, %rd16;
	add.s64 	%rd89, %rd82, %rd17;
	setp.ge.u64 	%p10, %rd5, %rd83;
	mov.u64 	%rd255, %rd2;
	@%p10 bra 	$L__BB0_26;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd254, %rd90, %rd9;
	add.s64 	%rd253, %rd89, %rd11;
	add.s64 	%rd252, %rd89, %rd9;
	add.s64 	%rd251, %rd89, %rd6;
	add.s64 	%rd249, %rd90, %rd11;
	add.s64 	%rd248, %rd90, %rd6;
	mov.u64 	%rd247, %rd90;
	mov.u64 	%rd250, %rd89;
	mov.u64 	%rd255, %rd2;
$L__BB0_25:                             // %for.body.i46.i98.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd168, %rd247, %rd8;
	ld.u32 	%r8, [%rd168];
	add.s64 	%rd169, %rd248, %rd8;
	ld.u32 	%r9, [%rd169];
	add.s64 	%rd170, %rd249, %rd8;
	ld.u32 	%r10, [%rd170];
	add.s64 	%rd171, %rd254, %rd8;
	ld.u32 	%r11, [%rd171];
	add.s64 	%rd172, %rd250, %rd8;
	st.u32 	[%rd172], %r8;
	add.s64 	%rd173, %rd251, %rd8;
	st.u32 	[%rd173], %r9;
	add.s64 	%rd174, %rd253, %rd8;
	st.u32 	[%rd174], %r10;
	add.s64 	%rd175, %rd252, %rd8;
	st.u32 	[%rd175], %r11;
	add.s64 	%rd255, %rd255, %rd6;
	add.s64 	%rd254, %rd254, %rd10;
	add.s64 	%rd176, %rd4, %rd255;
	add.s64 	%rd253, %rd253, %rd10;
	add.s64 	%rd252, %rd252, %rd10;
	add.s64 	%rd251, %rd251, %rd10;
	add.s64 	%rd250, %rd250, %rd10;
	add.s64 	%rd249, %rd249, %rd10;
	add.s64 	%rd248, %rd248, %rd10;
	add.s64 	%rd247, %rd247, %rd10;
	setp.lt.u64 	%p11, %rd176, %rd83;
	@%p11 bra 	$L__BB0_25;
$L__BB0_26:                             // %for.cond35.preheader.i35.i55.i
                                        //   in Loop: Header=BB0_2 Depth=1
	and.b64  	%rd165, %rd164, -4;
	setp.ge.u64 	%p12, %rd255, %rd83;
	@%p12 bra 	$L__BB0_29;
                                        //   in Loop: Header=BB0_2 Depth=1
	shl.b64 	%rd256, %rd255, 2;
$L__BB0_28:                             // %for.body37.i38.i88.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd177, %rd90, %rd256;
	ld.u32 	%r12, [%rd177];
	add.s64 	%rd178, %rd89, %rd256;
	st.u32 	[%rd178], %r12;
	add.s64 	%rd255, %rd255, %rd3;
	add.s64 	%rd256, %rd256, %rd6;
	setp.lt.u64 	%p13, %rd255, %rd83;
	@%p13 bra 	$L__BB0_28;
$L__BB0_29:                             // %_ZN6kvcove9transport4cuda9MoveWordsIjEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB0_2 Depth=1
	or.b64  	%rd84, %rd165, %rd82;
	add.s64 	%rd121, %rd84, %rd16;
	add.s64 	%rd122, %rd84, %rd17;
	sub.s64 	%rd123, %rd18, %rd84;
	setp.ge.u64 	%p14, %rd5, %rd123;
	mov.u64 	%rd259, %rd2;
	@%p14 bra 	$L__BB0_32;
                                        //   in Loop: Header=BB0_2 Depth=1
	add.s64 	%rd124, %rd121, %rd4;
	add.s64 	%rd125, %rd122, %rd7;
	add.s64 	%rd126, %rd122, %rd4;
	add.s64 	%rd127, %rd122, %rd3;
	add.s64 	%rd128, %rd121, %rd7;
	add.s64 	%rd129, %rd121, %rd3;
	mov.u64 	%rd259, %rd2;
$L__BB0_31:                             // %for.body.i79.i74.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd179, %rd121, %rd259;
	ld.u8 	%rs7, [%rd179];
	add.s64 	%rd180, %rd129, %rd259;
	ld.u8 	%rs8, [%rd180];
	add.s64 	%rd181, %rd128, %rd259;
	ld.u8 	%rs9, [%rd181];
	add.s64 	%rd182, %rd124, %rd259;
	ld.u8 	%rs10, [%rd182];
	add.s64 	%rd183, %rd122, %rd259;
	st.u8 	[%rd183], %rs7;
	add.s64 	%rd184, %rd127, %rd259;
	st.u8 	[%rd184], %rs8;
	add.s64 	%rd185, %rd125, %rd259;
	st.u8 	[%rd185], %rs9;
	add.s64 	%rd186, %rd126, %rd259;
	st.u8 	[%rd186], %rs10;
	add.s64 	%rd259, %rd259, %rd6;
	add.s64 	%rd187, %rd4, %rd259;
	setp.lt.u64 	%p15, %rd187, %rd123;
	@%p15 bra 	$L__BB0_31;
$L__BB0_32:                             // %for.cond35.preheader.i67.i62.i
                                        //   in Loop: Header=BB0_2 Depth=1
	setp.ge.u64 	%p16, %rd259, %rd123;
	@%p16 bra 	$L__BB0_39;
$L__BB0_33:                             // %for.body37.i70.i65.i
                                        //   Parent Loop BB0_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd188, %rd121, %rd259;
	ld.u8 	%rs11, [%rd188];
	add.s64 	%rd189, %rd122, %rd259;
	st.u8 	[%rd189], %rs11;
	add.s64 	%rd259, %rd259, %rd3;
	setp.lt.u64 	%p17, %rd259, %rd123;
	@%p17 bra 	$L__BB0_33;
	bra.uni 	$L__BB0_39;
$L__BB0_40:                             // %_ZN6kvcove9transport4cuda8MoveRunsENS1_4LaneEPKNS1_7MoveRunEj.exit
	ret;
                                        // -- End function
}
	// .globl	kvcove_gather           // -- Begin function kvcove_gather
.visible .entry kvcove_gather(
	.param .u64 kvcove_gather_param_0,
	.param .u32 kvcove_gather_param_1
)                                       // @kvcove_gather
{
	.reg .pred 	%p<31>;
	.reg .b16 	%rs<22>;
	.reg .b32 	%r<34>;
	.reg .b64 	%rd<264>;

	ld.param.u32 	%r5, [kvcove_gather_param_1];
	mov.u32 	%r33, %ctaid.x;
	setp.ge.u32 	%p1, %r33, %r5;
	@%p1 bra 	$L__BB1_40;
	ld.param.u64 	%rd146, [kvcove_gather_param_0];
	cvta.to.global.u64 	%rd1, %rd146;
	mov.u32 	%r2, %nctaid.x;
	mov.u32 	%r6, %ntid.x;
	mov.u32 	%r7, %tid.x;
	cvt.u64.u32 	%rd2, %r7;
	cvt.u64.u32 	%rd3, %r6;
	mul.wide.u32 	%rd4, %r6, 3;
	add.s64 	%rd5, %rd4, %rd2;
	mul.wide.u32 	%rd6, %r6, 4;
	mul.wide.u32 	%rd7, %r6, 2;
	mul.wide.u32 	%rd8, %r7, 4;
	mul.wide.u32 	%rd9, %r6, 12;
	mul.wide.u32 	%rd10, %r6, 16;
	mul.wide.u32 	%rd11, %r6, 8;
	mul.wide.u32 	%rd12, %r7, 16;
	mul.wide.u32 	%rd13, %r6, 48;
	mul.wide.u32 	%rd14, %r6, 64;
	mul.wide.u32 	%rd15, %r6, 32;
	bra.uni 	$L__BB1_2;
$L__BB1_39:                             // %if.end15.i
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s32 	%r33, %r33, %r2;
	setp.lt.u32 	%p30, %r33, %r5;
	@%p30 bra 	$L__BB1_2;
	bra.uni 	$L__BB1_40;
$L__BB1_2:                              // %for.body.i
                                        // =>This Loop Header: Depth=1
                                        //     Child Loop BB1_36 Depth 2
                                        //     Child Loop BB1_38 Depth 2
                                        //     Child Loop BB1_22 Depth 2
                                        //     Child Loop BB1_25 Depth 2
                                        //     Child Loop BB1_28 Depth 2
                                        //     Child Loop BB1_31 Depth 2
                                        //     Child Loop BB1_33 Depth 2
                                        //     Child Loop BB1_5 Depth 2
                                        //     Child Loop BB1_7 Depth 2
                                        //     Child Loop BB1_10 Depth 2
                                        //     Child Loop BB1_13 Depth 2
                                        //     Child Loop BB1_16 Depth 2
                                        //     Child Loop BB1_18 Depth 2
	mul.wide.u32 	%rd147, %r33, 24;
	add.s64 	%rd148, %rd1, %rd147;
	ld.global.u64 	%rd16, [%rd148];
	ld.global.u64 	%rd17, [%rd148+8];
	ld.global.u64 	%rd18, [%rd148+16];
	xor.b64  	%rd19, %rd17, %rd16;
	and.b64  	%rd149, %rd19, 15;
	setp.ne.s64 	%p2, %rd149, 0;
	@%p2 bra 	$L__BB1_19;
	bra.uni 	$L__BB1_3;
$L__BB1_19:                             // %if.else.i
                                        //   in Loop: Header=BB1_2 Depth=1
	and.b64  	%rd150, %rd19, 3;
	setp.ne.s64 	%p3, %rd150, 0;
	@%p3 bra 	$L__BB1_34;
	bra.uni 	$L__BB1_20;
$L__BB1_34:                             // %if.else13.i
                                        //   in Loop: Header=BB1_2 Depth=1
	setp.ge.u64 	%p4, %rd5, %rd18;
	mov.u64 	%rd262, %rd2;
	@%p4 bra 	$L__BB1_37;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd135, %rd16, %rd4;
	add.s64 	%rd136, %rd17, %rd7;
	add.s64 	%rd137, %rd17, %rd4;
	add.s64 	%rd138, %rd17, %rd3;
	add.s64 	%rd139, %rd16, %rd7;
	add.s64 	%rd140, %rd16, %rd3;
	mov.u64 	%rd262, %rd2;
$L__BB1_36:                             // %for.body.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd151, %rd16, %rd262;
	ld.u8 	%rs1, [%rd151];
	add.s64 	%rd152, %rd140, %rd262;
	ld.u8 	%rs2, [%rd152];
	add.s64 	%rd153, %rd139, %rd262;
	ld.u8 	%rs3, [%rd153];
	add.s64 	%rd154, %rd135, %rd262;
	ld.u8 	%rs4, [%rd154];
	add.s64 	%rd155, %rd17, %rd262;
	st.u8 	[%rd155], %rs1;
	add.s64 	%rd156, %rd138, %rd262;
	st.u8 	[%rd156], %rs2;
	add.s64 	%rd157, %rd136, %rd262;
	st.u8 	[%rd157], %rs3;
	add.s64 	%rd158, %rd137, %rd262;
	st.u8 	[%rd158], %rs4;
	add.s64 	%rd262, %rd262, %rd6;
	add.s64 	%rd159, %rd4, %rd262;
	setp.lt.u64 	%p5, %rd159, %rd18;
	@%p5 bra 	$L__BB1_36;
$L__BB1_37:                             // %for.cond35.preheader.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	setp.ge.u64 	%p6, %rd262, %rd18;
	@%p6 bra 	$L__BB1_39;
$L__BB1_38:                             // %for.body37.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd160, %rd16, %rd262;
	ld.u8 	%rs5, [%rd160];
	add.s64 	%rd161, %rd17, %rd262;
	st.u8 	[%rd161], %rs5;
	add.s64 	%rd262, %rd262, %rd3;
	setp.lt.u64 	%p7, %rd262, %rd18;
	@%p7 bra 	$L__BB1_38;
	bra.uni 	$L__BB1_39;
$L__BB1_3:                              // %if.then.i
                                        //   in Loop: Header=BB1_2 Depth=1
	neg.s64 	%rd190, %rd16;
	and.b64  	%rd191, %rd190, 15;
	min.u64 	%rd20, %rd191, %rd18;
	setp.ge.u64 	%p18, %rd5, %rd20;
	mov.u64 	%rd228, %rd2;
	@%p18 bra 	$L__BB1_6;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd23, %rd16, %rd4;
	add.s64 	%rd24, %rd17, %rd7;
	add.s64 	%rd25, %rd17, %rd4;
	add.s64 	%rd26, %rd17, %rd3;
	add.s64 	%rd27, %rd16, %rd7;
	add.s64 	%rd28, %rd16, %rd3;
	mov.u64 	%rd228, %rd2;
$L__BB1_5:                              // %for.body.i.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd194, %rd16, %rd228;
	ld.u8 	%rs12, [%rd194];
	add.s64 	%rd195, %rd28, %rd228;
	ld.u8 	%rs13, [%rd195];
	add.s64 	%rd196, %rd27, %rd228;
	ld.u8 	%rs14, [%rd196];
	add.s64 	%rd197, %rd23, %rd228;
	ld.u8 	%rs15, [%rd197];
	add.s64 	%rd198, %rd17, %rd228;
	st.u8 	[%rd198], %rs12;
	add.s64 	%rd199, %rd26, %rd228;
	st.u8 	[%rd199], %rs13;
	add.s64 	%rd200, %rd24, %rd228;
	st.u8 	[%rd200], %rs14;
	add.s64 	%rd201, %rd25, %rd228;
	st.u8 	[%rd201], %rs15;
	add.s64 	%rd228, %rd228, %rd6;
	add.s64 	%rd202, %rd4, %rd228;
	setp.lt.u64 	%p19, %rd202, %rd20;
	@%p19 bra 	$L__BB1_5;
$L__BB1_6:                              // %for.cond35.preheader.i.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	setp.ge.u64 	%p20, %rd228, %rd20;
	@%p20 bra 	$L__BB1_8;
$L__BB1_7:                              // %for.body37.i.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd203, %rd16, %rd228;
	ld.u8 	%rs16, [%rd203];
	add.s64 	%rd204, %rd17, %rd228;
	st.u8 	[%rd204], %rs16;
	add.s64 	%rd228, %rd228, %rd3;
	setp.lt.u64 	%p21, %rd228, %rd20;
	@%p21 bra 	$L__BB1_7;
$L__BB1_8:                              // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	sub.s64 	%rd192, %rd18, %rd20;
	shr.u64 	%rd21, %rd192, 4;
	add.s64 	%rd37, %rd20, %rd16;
	add.s64 	%rd36, %rd20, %rd17;
	setp.ge.u64 	%p22, %rd5, %rd21;
	mov.u64 	%rd239, %rd2;
	@%p22 bra 	$L__BB1_11;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd238, %rd37, %rd13;
	add.s64 	%rd237, %rd36, %rd15;
	add.s64 	%rd236, %rd36, %rd13;
	add.s64 	%rd235, %rd36, %rd10;
	add.s64 	%rd233, %rd37, %rd15;
	add.s64 	%rd232, %rd37, %rd10;
	mov.u64 	%rd231, %rd37;
	mov.u64 	%rd234, %rd36;
	mov.u64 	%rd239, %rd2;
$L__BB1_10:                             // %for.body.i46.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd205, %rd231, %rd12;
	ld.v4.u32 	{%r13, %r14, %r15, %r16}, [%rd205];
	add.s64 	%rd206, %rd232, %rd12;
	ld.v4.u32 	{%r17, %r18, %r19, %r20}, [%rd206];
	add.s64 	%rd207, %rd233, %rd12;
	ld.v4.u32 	{%r21, %r22, %r23, %r24}, [%rd207];
	add.s64 	%rd208, %rd238, %rd12;
	ld.v4.u32 	{%r25, %r26, %r27, %r28}, [%rd208];
	add.s64 	%rd209, %rd234, %rd12;
	st.v4.u32 	[%rd209], {%r13, %r14, %r15, %r16};
	add.s64 	%rd210, %rd235, %rd12;
	st.v4.u32 	[%rd210], {%r17, %r18, %r19, %r20};
	add.s64 	%rd211, %rd237, %rd12;
	st.v4.u32 	[%rd211], {%r21, %r22, %r23, %r24};
	add.s64 	%rd212, %rd236, %rd12;
	st.v4.u32 	[%rd212], {%r25, %r26, %r27, %r28};
	add.s64 	%rd239, %rd239, %rd6;
	add.s64 	%rd238, %rd238, %rd14;
	add.s64 	%rd213, %rd4, %rd239;
	add.s64 	%rd237, %rd237, %rd14;
	add.s64 	%rd236, %rd236, %rd14;
	add.s64 	%rd235, %rd235, %rd14;
	add.s64 	%rd234, %rd234, %rd14;
	add.s64 	%rd233, %rd233, %rd14;
	add.s64 	%rd232, %rd232, %rd14;
	add.s64 	%rd231, %rd231, %rd14;
	setp.lt.u64 	%p23, %rd213, %rd21;
	@%p23 bra 	$L__BB1_10;
$L__BB1_11:                             // %for.cond35.preheader.i35.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	and.b64  	%rd193, %rd192, -16;
	setp.ge.u64 	%p24, %rd239, %rd21;
	@%p24 bra 	$L__BB1_14;
                                        //   in Loop: Header=BB1_2 Depth=1
	shl.b64 	%rd240, %rd239, 4;
$L__BB1_13:                             // %for.body37.i38.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd214, %rd37, %rd240;
	ld.v4.u32 	{%r29, %r30, %r31, %r32}, [%rd214];
	add.s64 	%rd215, %rd36, %rd240;
	st.v4.u32 	[%rd215], {%r29, %r30, %r31, %r32};
	add.s64 	%rd239, %rd239, %rd3;
	add.s64 	%rd240, %rd240, %rd10;
	setp.lt.u64 	%p25, %rd239, %rd21;
	@%p25 bra 	$L__BB1_13;
$L__BB1_14:                             // %_ZN6kvcove9transport4cuda9MoveWordsIDv4_jEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	or.b64  	%rd22, %rd193, %rd20;
	add.s64 	%rd68, %rd22, %rd16;
	add.s64 	%rd69, %rd22, %rd17;
	sub.s64 	%rd70, %rd18, %rd22;
	setp.ge.u64 	%p26, %rd5, %rd70;
	mov.u64 	%rd243, %rd2;
	@%p26 bra 	$L__BB1_17;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd71, %rd68, %rd4;
	add.s64 	%rd72, %rd69, %rd7;
	add.s64 	%rd73, %rd69, %rd4;
	add.s64 	%rd74, %rd69, %rd3;
	add.s64 	%rd75, %rd68, %rd7;
	add.s64 	%rd76, %rd68, %rd3;
	mov.u64 	%rd243, %rd2;
$L__BB1_16:                             // %for.body.i79.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd216, %rd68, %rd243;
	ld.u8 	%rs17, [%rd216];
	add.s64 	%rd217, %rd76, %rd243;
	ld.u8 	%rs18, [%rd217];
	add.s64 	%rd218, %rd75, %rd243;
	ld.u8 	%rs19, [%rd218];
	add.s64 	%rd219, %rd71, %rd243;
	ld.u8 	%rs20, [%rd219];
	add.s64 	%rd220, %rd69, %rd243;
	st.u8 	[%rd220], %rs17;
	add.s64 	%rd221, %rd74, %rd243;
	st.u8 	[%rd221], %rs18;
	add.s64 	%rd222, %rd72, %rd243;
	st.u8 	[%rd222], %rs19;
	add.s64 	%rd223, %rd73, %rd243;
	st.u8 	[%rd223], %rs20;
	add.s64 	%rd243, %rd243, %rd6;
	add.s64 	%rd224, %rd4, %rd243;
	setp.lt.u64 	%p27, %rd224, %rd70;
	@%p27 bra 	$L__BB1_16;
$L__BB1_17:                             // %for.cond35.preheader.i67.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	setp.ge.u64 	%p28, %rd243, %rd70;
	@%p28 bra 	$L__BB1_39;
$L__BB1_18:                             // %for.body37.i70.i.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd225, %rd68, %rd243;
	ld.u8 	%rs21, [%rd225];
	add.s64 	%rd226, %rd69, %rd243;
	st.u8 	[%rd226], %rs21;
	add.s64 	%rd243, %rd243, %rd3;
	setp.lt.u64 	%p29, %rd243, %rd70;
	@%p29 bra 	$L__BB1_18;
	bra.uni 	$L__BB1_39;
$L__BB1_20:                             // %if.then11.i
                                        //   in Loop: Header=BB1_2 Depth=1
	neg.s64 	%rd162, %rd16;
	and.b64  	%rd163, %rd162, 3;
	min.u64 	%rd82, %rd163, %rd18;
	setp.le.u64 	%p8, %rd82, %rd2;
	@%p8 bra 	$L__BB1_23;
                                        //   in Loop: Header=BB1_2 Depth=1
	mov.u64 	%rd245, %rd2;
$L__BB1_22:                             // %for.body37.i.i112.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd166, %rd16, %rd245;
	ld.u8 	%rs6, [%rd166];
	add.s64 	%rd167, %rd17, %rd245;
	st.u8 	[%rd167], %rs6;
	add.s64 	%rd245, %rd245, %rd3;
	setp.lt.u64 	%p9, %rd245, %rd82;
	@%p9 bra 	$L__BB1_22;
$L__BB1_23:                             // %_ZN6kvcove9transport4cuda9MoveWordsIhEEvNS1_4LaneEyyy.exit.i51.i
                                        //   in Loop: Header=BB1_2 Depth=1
	sub.s64 	%rd164, %rd18, %rd82;
	shr.u64 	%rd83, %rd164, 2;
	add.s64 	%rd90, %rd82, %rd16;
	add.s64 	%rd89, %rd82, %rd17;
	setp.ge.u64 	%p10, %rd5, %rd83;
	mov.u64 	%rd255, %rd2;
	@%p10 bra 	$L__BB1_26;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd254, %rd90, %rd9;
	add.s64 	%rd253, %rd89, %rd11;
	add.s64 	%rd252, %rd89, %rd9;
	add.s64 	%rd251, %rd89, %rd6;
	add.s64 	%rd249, %rd90, %rd11;
	add.s64 	%rd248, %rd90, %rd6;
	mov.u64 	%rd247, %rd90;
	mov.u64 	%rd250, %rd89;
	mov.u64 	%rd255, %rd2;
$L__BB1_25:                             // %for.body.i46.i98.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd168, %rd247, %rd8;
	ld.u32 	%r8, [%rd168];
	add.s64 	%rd169, %rd248, %rd8;
	ld.u32 	%r9, [%rd169];
	add.s64 	%rd170, %rd249, %rd8;
	ld.u32 	%r10, [%rd170];
	add.s64 	%rd171, %rd254, %rd8;
	ld.u32 	%r11, [%rd171];
	add.s64 	%rd172, %rd250, %rd8;
	st.u32 	[%rd172], %r8;
	add.s64 	%rd173, %rd251, %rd8;
	st.u32 	[%rd173], %r9;
	add.s64 	%rd174, %rd253, %rd8;
	st.u32 	[%rd174], %r10;
	add.s64 	%rd175, %rd252, %rd8;
	st.u32 	[%rd175], %r11;
	add.s64 	%rd255, %rd255, %rd6;
	add.s64 	%rd254, %rd254, %rd10;
	add.s64 	%rd176, %rd4, %rd255;
	add.s64 	%rd253, %rd253, %rd10;
	add.s64 	%rd252, %rd252, %rd10;
	add.s64 	%rd251, %rd251, %rd10;
	add.s64 	%rd250, %rd250, %rd10;
	add.s64 	%rd249, %rd249, %rd10;
	add.s64 	%rd248, %rd248, %rd10;
	add.s64 	%rd247, %rd247, %rd10;
	setp.lt.u64 	%p11, %rd176, %rd83;
	@%p11 bra 	$L__BB1_25;
$L__BB1_26:                             // %for.cond35.preheader.i35.i55.i
                                        //   in Loop: Header=BB1_2 Depth=1
	and.b64  	%rd165, %rd164, -4;
	setp.ge.u64 	%p12, %rd255, %rd83;
	@%p12 bra 	$L__BB1_29;
                                        //   in Loop: Header=BB1_2 Depth=1
	shl.b64 	%rd256, %rd255, 2;
$L__BB1_28:                             // %for.body37.i38.i88.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd177, %rd90, %rd256;
	ld.u32 	%r12, [%rd177];
	add.s64 	%rd178, %rd89, %rd256;
	st.u32 	[%rd178], %r12;
	add.s64 	%rd255, %rd255, %rd3;
	add.s64 	%rd256, %rd256, %rd6;
	setp.lt.u64 	%p13, %rd255, %rd83;
	@%p13 bra 	$L__BB1_28;
$L__BB1_29:                             // %_ZN6kvcove9transport4cuda9MoveWordsIjEEvNS1_4LaneEyyy.exit.i.i
                                        //   in Loop: Header=BB1_2 Depth=1
	or.b64  	%rd84, %rd165, %rd82;
	add.s64 	%rd121, %rd84, %rd16;
	add.s64 	%rd122, %rd84, %rd17;
	sub.s64 	%rd123, %rd18, %rd84;
	setp.ge.u64 	%p14, %rd5, %rd123;
	mov.u64 	%rd259, %rd2;
	@%p14 bra 	$L__BB1_32;
                                        //   in Loop: Header=BB1_2 Depth=1
	add.s64 	%rd124, %rd121, %rd4;
	add.s64 	%rd125, %rd122, %rd7;
	add.s64 	%rd126, %rd122, %rd4;
	add.s64 	%rd127, %rd122, %rd3;
	add.s64 	%rd128, %rd121, %rd7;
	add.s64 	%rd129, %rd121, %rd3;
	mov.u64 	%rd259, %rd2;
$L__BB1_31:                             // %for.body.i79.i74.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd179, %rd121, %rd259;
	ld.u8 	%rs7, [%rd179];
	add.s64 	%rd180, %rd129, %rd259;
	ld.u8 	%rs8, [%rd180];
	add.s64 	%rd181, %rd128, %rd259;
	ld.u8 	%rs9, [%rd181];
	add.s64 	%rd182, %rd124, %rd259;
	ld.u8 	%rs10, [%rd182];
	add.s64 	%rd183, %rd122, %rd259;
	st.u8 	[%rd183], %rs7;
	add.s64 	%rd184, %rd127, %rd259;
	st.u8 	[%rd184], %rs8;
	add.s64 	%rd185, %rd125, %rd259;
	st.u8 	[%rd185], %rs9;
	add.s64 	%rd186, %rd126, %rd259;
	st.u8 	[%rd186], %rs10;
	add.s64 	%rd259, %rd259, %rd6;
	add.s64 	%rd187, %rd4, %rd259;
	setp.lt.u64 	%p15, %rd187, %rd123;
	@%p15 bra 	$L__BB1_31;
$L__BB1_32:                             // %for.cond35.preheader.i67.i62.i
                                        //   in Loop: Header=BB1_2 Depth=1
	setp.ge.u64 	%p16, %rd259, %rd123;
	@%p16 bra 	$L__BB1_39;
$L__BB1_33:                             // %for.body37.i70.i65.i
                                        //   Parent Loop BB1_2 Depth=1
                                        // =>  This Inner Loop Header: Depth=2
	add.s64 	%rd188, %rd121, %rd259;
	ld.u8 	%rs11, [%rd188];
	add.s64 	%rd189, %rd122, %rd259;
	st.u8 	[%rd189], %rs11;
	add.s64 	%rd259, %rd259, %rd3;
	setp.lt.u64 	%p17, %rd259, %rd123;
	@%p17 bra 	$L__BB1_33;
	bra.uni 	$L__BB1_39;
$L__BB1_40:                             // %_ZN6kvcove9transport4cuda8MoveRunsENS1_4LaneEPKNS1_7MoveRunEj.exit
	ret;
                                        // -- End function
}
)ptx";

}  // namespace kvcove::transport::cuda
