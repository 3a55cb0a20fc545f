//! The record of a process's driver calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use softgpu_harness::programs::built;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, text};

const VARIABLE: &str = "WEIR_SOFTGPU_CALLS";

/// Returns the calls of each thread, with their results, by process and thread.
fn read(folder: &Path) -> BTreeMap<(String, String), Vec<(String, u32)>> {
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let process = path.file_name().unwrap().to_str().unwrap().to_owned();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [thread, name, result] = words[..] else {
                panic!("{line}");
            };
            let of_thread = calls.entry((process.clone(), thread.to_owned()));
            let call = (name.to_owned(), result.parse().unwrap());
            of_thread.or_default().push(call);
        }
    }
    calls
}

#[test]
fn calls_are_recorded_by_process_and_thread_in_their_order() {
    let softgpu = SoftGpuDir::h100();
    let folder = softgpu.folder().join("calls");
    fs::create_dir(&folder).unwrap();
    let mut command = softgpu.program("vector_add");
    let output = command.env(VARIABLE, &folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let threads = read(&folder);
    let processes: BTreeSet<_> = threads.keys().map(|(process, _)| process).collect();
    assert_eq!(processes.len(), 1);
    let main = threads
        .iter()
        .find(|((process, thread), _)| process == thread);
    let (_, calls) = main.unwrap();
    let place = |name: &str| {
        let place = calls.iter().position(|call| *call == (name.to_owned(), 0));
        place.unwrap_or_else(|| panic!("{name} is not among {calls:?}"))
    };
    let order = [
        "cuInit",
        "cuModuleLoadData",
        "cuLaunchKernel",
        "cuMemcpyDtoH_v2",
    ]
    .map(place);
    assert!(order.is_sorted(), "{calls:?}");
}

#[test]
fn a_refused_call_is_recorded_with_its_error() {
    let softgpu = SoftGpuDir::h100();
    let folder = softgpu.folder().join("calls");
    fs::create_dir(&folder).unwrap();
    let mut command = softgpu.command(built("refused"));
    let command = command.arg("tables").env(VARIABLE, &folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let mut calls = read(&folder).into_values().flatten();
    assert!(
        calls.any(|(name, result)| name == "cuGetExportTable" && result != 0),
        "{:?}",
        read(&folder)
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_once_and_the_program_runs() {
    let softgpu = SoftGpuDir::h100();
    let missing = softgpu.folder().join("missing");
    let mut command = softgpu.program("vector_add");
    let output = command.env(VARIABLE, &missing).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    let reports = lines.lines().filter(|line| line.contains(VARIABLE));
    assert_eq!(reports.count(), 1, "{lines}");
}
