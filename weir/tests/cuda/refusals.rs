//! Messages for programs that cannot run on a software GPU: on standard error, and in `weir softgpu status`.

use std::process::Output;

use softgpu_harness::programs::built;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, text};

const TABLES: &str = "softgpu: the CUDA runtime's private tables are not supported";
const NO_CODE: &str = ": no machine code for sm_90, and no PTX for compute_90 or an earlier one";

fn refused(softgpu: &SoftGpuDir, what: &str) -> Output {
    let mut command = softgpu.command(built("refused"));
    // The program writes a file into its working directory.
    command.current_dir(softgpu.folder());
    let output = command.arg(what).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{what}: {}", text(&output));
    output
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().map(str::to_owned).collect()
}

/// The program requests the tables before `cuInit` and after it, several times, as the runtime does.
#[test]
fn missing_runtime_tables_are_reported_once_per_program() {
    let softgpu = SoftGpuDir::h100();
    for runs in 1..=2 {
        let output = refused(&softgpu, "tables");
        assert_eq!(lines(&output), [TABLES]);
        let unsupported = &softgpu.observer().statistics()["unsupported"];
        assert_eq!(unsupported["cuGetExportTable"], runs);
    }
    let status = softgpu.weir("status", &[]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let line = status.lines().find(|line| line.starts_with("softgpu: "));
    assert_eq!(
        line,
        Some(&*format!(
            "{TABLES} (cuGetExportTable, called by 2 programs)"
        ))
    );
    assert!(!status.contains("not there and called"), "{status}");
}

/// Each form is passed to every call that takes images, twice; the line is printed once.
#[test]
fn refused_images_are_reported_with_form_and_kernels() {
    let softgpu = SoftGpuDir::h100();
    for (form, result, what) in [
        ("ptx", 209, "PTX for compute_120 with kernels add, _Z3mulPf"),
        ("elf", 209, "machine code (a cubin) with kernel scale"),
        ("host", 200, "an ELF file of machine 62, no cubin"),
        (
            "fat",
            209,
            "a fat binary (PTX for compute_120 with kernel add; machine code for sm_80, compressed; machine code for sm_75 with \
             kernel scale)",
        ),
        (
            "wrapper",
            209,
            "a fat binary (PTX for compute_120 with kernel add; machine code for sm_80, compressed; machine code for sm_75 with \
             kernel scale)",
        ),
        ("bitcode", 200, "LLVM bitcode"),
        (
            "text",
            200,
            "an image of no known format, which begins with \"__global__ void \"",
        ),
    ] {
        let output = refused(&softgpu, form);
        let mut calls = vec![
            "cuModuleLoadData",
            "cuModuleLoadDataEx",
            "cuModuleLoadFatBinary",
            "cuLibraryLoadData",
        ];
        if form != "wrapper" {
            // A wrapper points into its process's memory, so it cannot come from a file.
            calls.extend(["cuModuleLoad", "cuLibraryLoadFromFile"]);
        }
        let expected: Vec<_> = calls
            .iter()
            .map(|call| format!("softgpu: {call} refuses {what}{NO_CODE}"))
            .collect();
        assert_eq!(lines(&output), expected, "{form}");
        let results: Vec<_> = calls
            .iter()
            .map(|call| format!("{call} {result}"))
            .collect();
        let printed = String::from_utf8(output.stdout).unwrap();
        // Each call is made twice.
        let twice: Vec<_> = results.iter().flat_map(|line| [line, line]).collect();
        assert_eq!(printed.lines().collect::<Vec<_>>(), twice, "{form}");
    }
}

#[test]
fn refused_linking_is_reported_with_its_inputs() {
    let softgpu = SoftGpuDir::h100();
    let none = ": a software GPU has no linker";
    assert_eq!(
        lines(&refused(&softgpu, "link")),
        [
            format!("softgpu: cuLinkCreate_v2 refuses a new link{none}"),
            format!(
                "softgpu: cuLinkAddData_v2 refuses PTX for compute_120 with kernels add, _Z3mulPf, named \"mine\"{none}"
            ),
            format!(
                "softgpu: cuLinkAddFile_v2 refuses machine code (a cubin) with kernel scale in refused-image{none}"
            ),
        ]
    );
    let unsupported = &softgpu.observer().statistics()["unsupported"];
    for name in ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkAddFile_v2"] {
        assert_eq!(unsupported[name], 1, "{unsupported}");
    }
}

#[test]
fn the_number_of_reported_images_is_bounded() {
    let softgpu = SoftGpuDir::h100();
    let printed = lines(&refused(&softgpu, "many"));
    assert_eq!(printed.len(), 65, "{printed:?}");
    assert!(printed[63].contains("kernel k63"), "{}", printed[63]);
    assert_eq!(
        printed[64],
        "softgpu: further refused images are not reported"
    );
}
