//! The contents of the table of driver functions.

use std::collections::BTreeSet;

use preload_table::{Class, ENTRIES, Entry, NVML, Parameter, Unresolved, entry, nvml, resolve};

#[test]
fn the_table_is_sorted_and_has_each_symbol_once() {
    assert!(ENTRIES.is_sorted_by(|one, other| one.symbol() < other.symbol()));
    for one in &ENTRIES {
        let found = entry(one.symbol().as_bytes()).unwrap();
        assert_eq!(found.symbol(), one.symbol());
        assert_eq!(found.symbol_c().to_bytes(), one.symbol().as_bytes());
    }
    assert!(entry(b"").is_none());
    assert!(entry(b"cuMemAlloc_v9").is_none());
    assert!(NVML.is_sorted());
    assert!(nvml(b"nvmlDeviceGetMemoryInfo").is_some());
    assert!(nvml(b"nvmlInit").is_none());
}

#[test]
fn every_letter_of_a_signature_is_a_parameter() {
    for one in &ENTRIES {
        assert_eq!(one.parameters().count(), one.signature().len(), "{one:?}");
    }
}

#[test]
fn every_launch_of_a_kernel_or_a_graph_is_a_launch() {
    let launches: BTreeSet<_> = ENTRIES
        .iter()
        .filter(|entry| entry.class() == Class::Launch)
        .map(Entry::symbol)
        .collect();
    assert_eq!(
        launches,
        BTreeSet::from([
            "cuGraphLaunch",
            "cuGraphLaunch_ptsz",
            "cuLaunch",
            "cuLaunchCooperativeKernel",
            "cuLaunchCooperativeKernelMultiDevice",
            "cuLaunchCooperativeKernel_ptsz",
            "cuLaunchGrid",
            "cuLaunchGridAsync",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cuLaunchKernelEx_ptsz",
            "cuLaunchKernel_ptsz",
        ])
    );
    // Any other function with `Launch` in its name launches neither a kernel nor a graph.
    for one in ENTRIES.iter().filter(|one| one.name().contains("Launch")) {
        let is_known = one.name() == "cuLaunchHostFunc" || one.class() == Class::Launch;
        assert!(is_known, "{}", one.symbol());
    }
}

#[test]
fn functions_of_a_family_have_its_class() {
    for (part, class) in [
        ("cuMemcpy", Class::Touch),
        ("cuMemset", Class::Touch),
        ("cuMemPrefetch", Class::Touch),
        ("cuGraphUpload", Class::Touch),
        ("cuStreamBatchMemOp", Class::Touch),
        ("cuMemAlloc", Class::Alloc),
        ("cuMemFree", Class::Alloc),
        ("cuMemMap", Class::Alloc),
        ("cuMemUnmap", Class::Alloc),
        ("cuMemCreate", Class::Alloc),
        ("cuMemPoolCreate", Class::Alloc),
        ("cuMemPoolTrimTo", Class::Alloc),
        ("cuIpcOpenMemHandle", Class::Alloc),
        ("cuArrayCreate", Class::Alloc),
        ("cuMipmappedArrayCreate", Class::Alloc),
        ("cuMulticastBind", Class::Alloc),
        ("cuCtxSynchronize", Class::Sync),
        ("cuStreamSynchronize", Class::Sync),
        ("cuEventSynchronize", Class::Sync),
        ("cuMemGetInfo", Class::Info),
        ("cuDeviceTotalMem", Class::Info),
        ("cuPointerGetAttribute", Class::Info),
        ("cuGetProcAddress", Class::Other),
        ("cuGetExportTable", Class::Other),
    ] {
        let mut all = ENTRIES.iter().filter(|one| one.name().starts_with(part));
        assert!(all.clone().next().is_some(), "{part}");
        assert!(all.all(|one| one.class() == class), "{part}");
    }
}

#[test]
fn a_variant_for_per_thread_streams_is_like_its_twin() {
    let mut twins = 0;
    for one in ENTRIES.iter().filter(|one| one.is_per_thread()) {
        let legacy = one.symbol().rsplit_once('_').unwrap().0;
        let legacy = entry(legacy.as_bytes()).unwrap();
        assert_eq!(one.name(), legacy.name());
        assert_eq!(one.class(), legacy.class(), "{}", one.symbol());
        assert_eq!(one.signature(), legacy.signature(), "{}", one.symbol());
        assert_eq!(one.is_hooked(), legacy.is_hooked(), "{}", one.symbol());
        assert!(!legacy.is_per_thread() && !one.is_32_bit());
        twins += 1;
    }
    assert!(twins > 80);
}

#[test]
fn it_is_known_where_the_stream_the_function_and_the_size_are() {
    let at = |symbol: &str| {
        let one = entry(symbol.as_bytes()).unwrap();
        [
            one.stream(),
            one.function(),
            one.graph_exec(),
            one.bytes(),
            one.position(Parameter::Address),
        ]
    };
    assert_eq!(at("cuLaunchKernel"), [Some(8), Some(0), None, None, None]);
    assert_eq!(at("cuLaunchKernelEx"), [None, Some(1), None, None, None]);
    let cooperative = at("cuLaunchCooperativeKernel_ptsz");
    assert_eq!(cooperative, [Some(8), Some(0), None, None, None]);
    assert_eq!(at("cuGraphLaunch"), [Some(1), None, Some(0), None, None]);
    assert_eq!(at("cuMemAlloc_v2"), [None, None, None, Some(1), None]);
    assert_eq!(at("cuMemAlloc"), [None, None, None, Some(1), None]);
    let copy = at("cuMemcpyHtoDAsync_v2_ptsz");
    assert_eq!(copy, [Some(3), None, None, Some(2), Some(0)]);
    assert_eq!(at("cuMemFree_v2"), [None, None, None, None, Some(0)]);
}

#[test]
fn a_symbol_of_before_cuda_3_2_is_known_to_be_one() {
    for (symbol, is_32_bit) in [
        ("cuMemAlloc", true),
        ("cuMemFree", true),
        ("cuMemGetInfo", true),
        ("cuMemcpyHtoD", true),
        ("cuMemAlloc_v2", false),
        ("cuMemAllocAsync", false),
        ("cuCtxCreate", false),
        ("cuMemcpy", false),
        ("cuLaunchKernel", false),
    ] {
        let one = entry(symbol.as_bytes()).unwrap();
        assert_eq!(one.is_32_bit(), is_32_bit, "{symbol}");
    }
    for one in ENTRIES.iter().filter(|one| one.is_32_bit()) {
        assert!(one.version() < 3020 && one.symbol() == one.name());
    }
}

#[test]
fn names_resolve_as_a_driver_resolves_them() {
    for (name, version, is_per_thread, symbol) in [
        ("cuMemAlloc", 2000, false, Ok("cuMemAlloc")),
        ("cuMemAlloc", 3020, false, Ok("cuMemAlloc_v2")),
        ("cuMemAlloc", 13_000, true, Ok("cuMemAlloc_v2")),
        ("cuLaunchKernel", 4000, false, Ok("cuLaunchKernel")),
        ("cuLaunchKernel", 7000, true, Ok("cuLaunchKernel_ptsz")),
        ("cuLaunchKernel", 4000, true, Ok("cuLaunchKernel")),
        (
            "cuLaunchKernel",
            3020,
            false,
            Err(Unresolved::VersionNotSufficient),
        ),
        ("cuMemcpyHtoD", 12_000, true, Ok("cuMemcpyHtoD_v2_ptds")),
        ("cuCtxCreate", 12_040, false, Ok("cuCtxCreate_v3")),
        ("cuGetProcAddress", 11_030, false, Ok("cuGetProcAddress")),
        ("cuGetProcAddress", 12_000, false, Ok("cuGetProcAddress_v2")),
        (
            "cuMemcpyBatchAsync",
            12_080,
            false,
            Ok("cuMemcpyBatchAsync"),
        ),
        (
            "cuMemcpyBatchAsync",
            13_000,
            false,
            Ok("cuMemcpyBatchAsync_v2"),
        ),
        ("", 13_000, false, Err(Unresolved::NotFound)),
        ("cuMemAlloc_v2", 13_000, false, Err(Unresolved::NotFound)),
    ] {
        let found = resolve(name.as_bytes(), version, is_per_thread).map(Entry::symbol);
        assert_eq!(found, symbol, "{name} {version}");
    }
    for one in &ENTRIES {
        let found = resolve(one.name().as_bytes(), one.version(), one.is_per_thread());
        assert_eq!(found.map(Entry::symbol), Ok(one.symbol()));
    }
}
