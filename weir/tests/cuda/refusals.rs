//! What is said of programs that cannot run on a software GPU: on standard error, and by `weir softgpu status`.

use std::process::Output;

use crate::build::built;
use crate::place::{Place, text};

const TABLES: &str = "softgpu: the CUDA runtime's private tables are not supported";
const RUNS: &str = ": a software GPU runs Weir's own kernels, and PTX whose kernels softgpu.toml names ([[kernel]])";

fn refused(place: &Place, what: &str) -> Output {
    let mut command = place.command(built("refused"));
    // It writes a file there.
    command.current_dir(place.folder());
    let output = command.arg(what).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{what}: {}", text(&output));
    output
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().map(str::to_owned).collect()
}

/// It asks before `cuInit` and after it, several times, as the runtime does.
#[test]
fn a_program_of_the_runtime_is_told_once_that_its_tables_are_not_there() {
    let place = Place::h100();
    for runs in 1..=2 {
        let output = refused(&place, "tables");
        assert_eq!(lines(&output), [TABLES]);
        let unsupported = &place.observer().statistics()["unsupported"];
        assert_eq!(unsupported["cuGetExportTable"], runs);
    }
    let status = place.weir("status", &[]).output().unwrap();
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

/// By each call that takes images, each twice: the line comes once.
#[test]
fn every_form_of_image_that_is_refused_is_named_with_its_kernels() {
    let place = Place::h100();
    for (form, result, what) in [
        ("ptx", 209, "PTX with kernels add, _Z3mulPf"),
        ("elf", 209, "machine code (a cubin) with kernel scale"),
        ("host", 200, "an ELF file of machine 62, no cubin"),
        (
            "fat",
            209,
            "a fat binary (PTX for compute_90 with kernel add; machine code for sm_80, compressed; machine code for sm_75 with \
             kernel scale)",
        ),
        (
            "wrapper",
            209,
            "a fat binary (PTX for compute_90 with kernel add; machine code for sm_80, compressed; machine code for sm_75 with \
             kernel scale)",
        ),
        ("bitcode", 200, "LLVM bitcode"),
        (
            "text",
            200,
            "an image of no known format, which begins with \"__global__ void \"",
        ),
    ] {
        let output = refused(&place, form);
        let mut calls = vec![
            "cuModuleLoadData",
            "cuModuleLoadDataEx",
            "cuModuleLoadFatBinary",
            "cuLibraryLoadData",
        ];
        if form != "wrapper" {
            // A wrapper points into the memory of its process.
            calls.extend(["cuModuleLoad", "cuLibraryLoadFromFile"]);
        }
        let expected: Vec<_> = calls
            .iter()
            .map(|call| format!("softgpu: {call} refuses {what}{RUNS}"))
            .collect();
        assert_eq!(lines(&output), expected, "{form}");
        let results: Vec<_> = calls
            .iter()
            .map(|call| format!("{call} {result}"))
            .collect();
        let said = String::from_utf8(output.stdout).unwrap();
        // Each is called twice.
        let twice: Vec<_> = results.iter().flat_map(|line| [line, line]).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), twice, "{form}");
    }
}

#[test]
fn what_is_to_be_linked_is_named() {
    let place = Place::h100();
    let none = ": a software GPU has no linker";
    assert_eq!(
        lines(&refused(&place, "link")),
        [
            format!("softgpu: cuLinkCreate_v2 refuses to begin{none}"),
            format!(
                "softgpu: cuLinkAddData_v2 refuses PTX with kernels add, _Z3mulPf, named \"mine\"{none}"
            ),
            format!(
                "softgpu: cuLinkAddFile_v2 refuses machine code (a cubin) with kernel scale in refused-image{none}"
            ),
        ]
    );
    let unsupported = &place.observer().statistics()["unsupported"];
    for name in ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkAddFile_v2"] {
        assert_eq!(unsupported[name], 1, "{unsupported}");
    }
}

#[test]
fn a_program_that_tries_many_images_does_not_fill_its_log() {
    let place = Place::h100();
    let said = lines(&refused(&place, "many"));
    assert_eq!(said.len(), 65, "{said:?}");
    assert!(said[63].contains("kernel k63"), "{}", said[63]);
    assert_eq!(
        said[64],
        "softgpu: further images are refused without a line"
    );
}
