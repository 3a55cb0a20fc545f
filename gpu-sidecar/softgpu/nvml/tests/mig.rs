//! Functions that the crate `nvml-wrapper` does not wrap, called as from C: MIG, names, sizes, `fork`.
#![allow(unsafe_code, reason = "there is no other way to call them")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;

use common::{Server, in_folder, library};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstancePlacement_t, nvmlMemory_t, nvmlProcessInfo_v2_t,
};
use softgpu_wire::message::ProcessLine;

const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const VERSION_MISMATCH: u32 = 25;

/// Calls a function whose last argument receives the result.
macro_rules! get {
    ($library:ident.$name:ident($($arg:expr),* $(,)?) -> $type:ty) => {{
        // SAFETY: all zeros are a valid value of every C struct used here.
        let mut value: $type = unsafe { std::mem::zeroed() };
        // SAFETY: the arguments are as the function's description requires.
        let code = unsafe { $library.$name($($arg,)* &raw mut value) };
        if code == SUCCESS { Ok(value) } else { Err(code) }
    }};
}

/// Calls a function without a result beyond its code.
macro_rules! call {
    ($library:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are as the function's description requires.
        unsafe { $library.$name($($arg),*) }
    }};
}

fn load() -> NvmlLib {
    // SAFETY: the library runs no code when it is loaded.
    unsafe { NvmlLib::new(library()) }.unwrap()
}

fn text(get: impl FnOnce(*mut c_char, u32) -> u32) -> Result<String, u32> {
    let mut room = [0; 96];
    match get(room.as_mut_ptr(), 96) {
        SUCCESS => {
            let bytes = room.map(|byte: c_char| byte.to_ne_bytes()[0]);
            let text = CStr::from_bytes_until_nul(&bytes).unwrap();
            Ok(text.to_str().unwrap().to_owned())
        }
        code => Err(code),
    }
}

fn uuid(nvml: &NvmlLib, device: nvmlDevice_t) -> Result<String, u32> {
    text(|to, room| call!(nvml.nvmlDeviceGetUUID(device, to, room)))
}

fn placements(nvml: &NvmlLib, device: nvmlDevice_t, id: u32) -> Vec<(u32, u32)> {
    let mut count = 0;
    let code = call!(nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device,
        id,
        null_mut(),
        &raw mut count
    ));
    assert_eq!(code, SUCCESS);
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
    let code = call!(nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device,
        id,
        places.as_mut_ptr(),
        &raw mut count
    ));
    assert_eq!(code, SUCCESS);
    places
        .iter()
        .map(|place| (place.start, place.size))
        .collect()
}

const SLICED: &str = "[[gpu]]\npart = \"H100\"\nslices = [\"3g.40gb\", \"2g.20gb\", \"1g.10gb\"]\n\
                      [[gpu]]\npart = \"H100\"\nslices = [\"1g.10gb\", \"1g.10gb\", \"1g.10gb\", \
                      \"1g.10gb\", \"1g.10gb\", \"1g.10gb\", \"1g.10gb\"]\n\
                      [[gpu]]\npart = \"H100\"";

#[test]
fn existing_and_possible_slices_are_found() {
    in_folder("existing_and_possible_slices_are_found", SLICED, |_| {
        let nvml = load();
        assert_eq!(call!(nvml.nvmlInit_v2()), SUCCESS);
        let gpu = |at| get!(nvml.nvmlDeviceGetHandleByIndex_v2(at) -> nvmlDevice_t).unwrap();
        let mut uuids = Vec::new();
        let mut found = BTreeMap::new();
        for at in 0..2 {
            let device = gpu(at);
            let (mut current, mut pending) = (7, 7);
            let code = call!(nvml.nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending));
            assert_eq!((code, current, pending), (SUCCESS, 1, 1));
            let most = get!(nvml.nvmlDeviceGetMaxMigDeviceCount(device) -> u32).unwrap();
            assert_eq!(most, 7);
            for index in 0..most {
                let slice =
                    get!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index) -> nvmlDevice_t);
                let slice = match slice {
                    Err(NOT_FOUND) => continue,
                    slice => slice.unwrap(),
                };
                let is_mig = get!(nvml.nvmlDeviceIsMigDeviceHandle(slice) -> u32);
                assert_eq!(is_mig, Ok(1));
                assert_eq!(get!(nvml.nvmlDeviceGetIndex(slice) -> u32), Ok(index));
                let parent =
                    get!(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice) -> nvmlDevice_t);
                assert_eq!(parent, Ok(device));
                let own = uuid(&nvml, slice).unwrap();
                assert!(own.starts_with("MIG-") && own.len() == 40, "{own}");
                let c_uuid = CString::new(own.clone()).unwrap();
                let again = get!(nvml.nvmlDeviceGetHandleByUUID(c_uuid.as_ptr()) -> nvmlDevice_t);
                assert_eq!(again, Ok(slice));
                uuids.push(own);
                let gi = get!(nvml.nvmlDeviceGetGpuInstanceId(slice) -> u32).unwrap();
                let ci = get!(nvml.nvmlDeviceGetComputeInstanceId(slice) -> u32).unwrap();
                let has =
                    get!(nvml.nvmlDeviceGetAttributes_v2(slice) -> nvmlDeviceAttributes_t).unwrap();
                let memory = get!(nvml.nvmlDeviceGetMemoryInfo(slice) -> nvmlMemory_t).unwrap();
                assert_eq!(memory.total >> 20, has.memorySizeMB);
                let name = text(|to, room| call!(nvml.nvmlDeviceGetName(slice, to, room)));
                let name = name.unwrap().split_off("NVIDIA H100 80GB HBM3 MIG ".len());
                // Instances of the MIG device.
                let instance =
                    get!(nvml.nvmlDeviceGetGpuInstanceById(device, gi) -> nvmlGpuInstance_t)
                        .unwrap();
                // SAFETY: all zeros are a valid value of this struct.
                let mut info = unsafe { std::mem::zeroed() };
                assert_eq!(
                    call!(nvml.nvmlGpuInstanceGetInfo(instance, &raw mut info)),
                    SUCCESS
                );
                assert_eq!((info.id, info.device), (gi, device));
                let compute = get!(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, ci) -> nvmlComputeInstance_t).unwrap();
                // SAFETY: all zeros are a valid value of this struct.
                let mut all = unsafe { std::mem::zeroed() };
                assert_eq!(
                    call!(nvml.nvmlComputeInstanceGetInfo_v2(compute, &raw mut all)),
                    SUCCESS
                );
                assert_eq!((all.gpuInstance, all.device), (instance, device));
                assert_eq!(all.placement.size, has.computeInstanceSliceCount);
                if at == 0 {
                    let place = (info.placement.start, info.placement.size);
                    found.insert(name, (gi, place, has.multiprocessorCount, info.profileId));
                }
            }
        }
        assert_eq!(uuids.len(), 3 + 7);
        uuids.dedup();
        assert_eq!(uuids.len(), 3 + 7);
        assert_eq!(found["3g.40gb"], (1, (0, 4), 60, 9));
        assert_eq!(found["2g.20gb"], (5, (4, 2), 32, 14));
        assert_eq!(found["1g.10gb"], (13, (6, 1), 16, 19));
        // Possible instances.
        let (sliced, whole) = (gpu(0), gpu(2));
        let mut profiles = Vec::new();
        for number in 0..17 {
            // SAFETY: all zeros are a valid value of this struct.
            let mut info = unsafe { std::mem::zeroed() };
            let code =
                call!(nvml.nvmlDeviceGetGpuInstanceProfileInfo(sliced, number, &raw mut info));
            if code == NOT_SUPPORTED {
                continue;
            }
            assert_eq!(code, SUCCESS);
            let places = placements(&nvml, sliced, info.id);
            assert!(places.iter().all(|(start, size)| start + size <= 8));
            let left = get!(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(sliced, info.id) -> u32);
            profiles.push((
                number,
                info.id,
                info.instanceCount,
                info.multiprocessorCount,
                left,
            ));
            // SAFETY: all zeros are a valid value of this struct.
            let mut newer = unsafe {
                std::mem::zeroed::<nvml_wrapper_sys::bindings::nvmlGpuInstanceProfileInfo_v2_t>()
            };
            let code =
                call!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(sliced, number, &raw mut newer));
            assert_eq!(code, VERSION_MISMATCH);
            newer.version = 0x0200_0098;
            let code =
                call!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(whole, number, &raw mut newer));
            assert_eq!(
                (code, newer.id, newer.memorySizeMB),
                (SUCCESS, info.id, info.memorySizeMB)
            );
        }
        assert_eq!(
            profiles,
            [
                (0, 19, 7, 16, Ok(0)),
                (1, 14, 3, 32, Ok(0)),
                (2, 9, 2, 60, Ok(0)),
                (3, 5, 1, 64, Ok(0)),
                (4, 0, 1, 132, Ok(0)),
                (9, 15, 4, 26, Ok(0)),
            ]
        );
        assert_eq!(placements(&nvml, whole, 9), [(0, 4), (4, 4)]);
        assert_eq!(placements(&nvml, whole, 14), [(0, 2), (2, 2), (4, 2)]);
        // Existing instances, by profile.
        let mut instances = [null_mut(); 7];
        let mut count = 0;
        let code = call!(nvml.nvmlDeviceGetGpuInstances(
            gpu(1),
            19,
            instances.as_mut_ptr(),
            &raw mut count
        ));
        assert_eq!((code, count), (SUCCESS, 7));
        // A GPU that is not sliced has no instances.
        let none = get!(nvml.nvmlDeviceGetMaxMigDeviceCount(whole) -> u32);
        assert_eq!(none, Ok(0));
        let none = get!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 0) -> nvmlDevice_t);
        assert_eq!(none, Err(NOT_SUPPORTED));
        // Instances cannot be changed.
        let status = get!(nvml.nvmlDeviceSetMigMode(whole, 1) -> u32);
        assert_eq!(status, Err(NOT_SUPPORTED));
        assert_eq!(
            get!(nvml.nvmlDeviceSetMigMode(sliced, 1) -> u32),
            Ok(SUCCESS)
        );
        let created = get!(nvml.nvmlDeviceCreateGpuInstance(sliced, 19) -> nvmlGpuInstance_t);
        assert_eq!(created, Err(NOT_SUPPORTED));
        assert_eq!(
            call!(nvml.nvmlGpuInstanceDestroy(instances[0])),
            NOT_SUPPORTED
        );
        // Each GPU instance has one compute instance, which spans it.
        // SAFETY: all zeros are a valid value of this struct.
        let mut profile = unsafe { std::mem::zeroed() };
        let code = call!(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            instances[0],
            0,
            0,
            &raw mut profile
        ));
        assert_eq!((code, profile.multiprocessorCount), (SUCCESS, 16));
        let code = call!(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            instances[0],
            1,
            0,
            &raw mut profile
        ));
        assert_eq!(code, NOT_SUPPORTED);
        assert_eq!(call!(nvml.nvmlShutdown()), SUCCESS);
    });
}

#[test]
fn a_sliced_gpu_is_the_sum_of_its_slices() {
    in_folder("a_sliced_gpu_is_the_sum_of_its_slices", SLICED, |folder| {
        let nvml = load();
        assert_eq!(call!(nvml.nvmlInitWithFlags(0)), SUCCESS);
        let server = Server::start(folder);
        let device = get!(nvml.nvmlDeviceGetHandleByIndex_v2(0) -> nvmlDevice_t).unwrap();
        let slice = |at| get!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, at) -> nvmlDevice_t);
        server
            .state()
            .used
            .extend([(0, 1 << 30), (1, 2 << 30), (3, 4 << 30)]);
        let line = |pid, unit| ProcessLine {
            pid,
            unit,
            memory: 1 << 30,
            ..ProcessLine::default()
        };
        server.state().processes = vec![line(10, 0), line(11, 1), line(12, 3)];
        let memory = get!(nvml.nvmlDeviceGetMemoryInfo(device) -> nvmlMemory_t).unwrap();
        assert_eq!((memory.total, memory.used), (81_559 << 20, 3 << 30));
        assert_eq!(memory.free + memory.used, memory.total);
        let own = slice(1).unwrap();
        let memory = get!(nvml.nvmlDeviceGetMemoryInfo(own) -> nvmlMemory_t).unwrap();
        assert_eq!((memory.total, memory.used), (20_091 << 20, 2 << 30));
        let list = |device| {
            let mut count = 8;
            // SAFETY: all zeros are a valid value of this struct.
            let mut found: [nvmlProcessInfo_v2_t; 8] = unsafe { std::mem::zeroed() };
            let code = call!(nvml.nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                found.as_mut_ptr()
            ));
            assert_eq!(code, SUCCESS);
            let found = found[..count as usize].iter();
            found
                .map(|own| (own.pid, own.gpuInstanceId, own.computeInstanceId))
                .collect::<Vec<_>>()
        };
        assert_eq!(list(device), [(10, 1, 0), (11, 5, 0)]);
        assert_eq!(list(own), [(11, 5, 0)]);
        assert_eq!(list(slice(2).unwrap()), []);
        // Neither reports utilization.
        for device in [device, own] {
            let rates = get!(nvml.nvmlDeviceGetUtilizationRates(device) -> nvml_wrapper_sys::bindings::nvmlUtilization_t);
            assert_eq!(rates.err(), Some(NOT_SUPPORTED));
        }
        // But utilization raises the GPU's temperature: 60 of its 132 SMs are busy.
        server.state().busy.insert(0, [1_000_000, 0]);
        let degrees = get!(nvml.nvmlDeviceGetTemperature(device, 0) -> u32);
        assert_eq!(degrees, Ok(47));
        // A slice of a lost GPU is lost.
        server.inject(0, 79);
        assert_eq!(uuid(&nvml, own), Err(15));
        assert_eq!(uuid(&nvml, device), Err(15));
    });
}

#[test]
fn invalid_calls_return_errors() {
    in_folder("invalid_calls_return_errors", "", |_| {
        let nvml = load();
        let count = || get!(nvml.nvmlDeviceGetCount_v2() -> u32);
        assert_eq!(count(), Err(UNINITIALIZED));
        assert_eq!(call!(nvml.nvmlShutdown()), UNINITIALIZED);
        let code = call!(nvml.nvmlVgpuTypeGetFbReservation(0, null_mut()));
        assert_eq!(code, UNINITIALIZED);
        for _ in 0..2 {
            assert_eq!(call!(nvml.nvmlInit_v2()), SUCCESS);
        }
        assert_eq!(count(), Ok(1));
        assert_eq!(
            call!(nvml.nvmlDeviceGetCount_v2(null_mut())),
            INVALID_ARGUMENT
        );
        let device = get!(nvml.nvmlDeviceGetHandleByIndex_v2(0) -> nvmlDevice_t).unwrap();
        let mut room = [0; 8];
        let code = call!(nvml.nvmlDeviceGetName(device, room.as_mut_ptr(), 8));
        assert_eq!((code, room), (INSUFFICIENT_SIZE, [0; 8]));
        let nowhere = call!(nvml.nvmlDeviceGetName(null_mut(), room.as_mut_ptr(), 8));
        assert_eq!(nowhere, INVALID_ARGUMENT);
        let set = get!(nvml.nvmlEventSetCreate() -> nvml_wrapper_sys::bindings::nvmlEventSet_t);
        let set = set.unwrap();
        let wrong = call!(nvml.nvmlDeviceGetName(set.cast(), room.as_mut_ptr(), 8));
        assert_eq!(wrong, INVALID_ARGUMENT);
        assert_eq!(
            call!(nvml.nvmlDeviceRegisterEvents(device, 1 << 40, set)),
            NOT_SUPPORTED
        );
        assert_eq!(call!(nvml.nvmlEventSetFree(set)), SUCCESS);
        assert_eq!(call!(nvml.nvmlEventSetFree(set)), INVALID_ARGUMENT);
        let words = call!(nvml.nvmlErrorString(NOT_SUPPORTED));
        // SAFETY: the result is a static string.
        let words = unsafe { CStr::from_ptr(words) };
        assert_eq!(words, c"Not Supported");
        // Every initialization needs its own shutdown.
        assert_eq!(call!(nvml.nvmlShutdown()), SUCCESS);
        assert_eq!(count(), Ok(1));
        assert_eq!(call!(nvml.nvmlShutdown()), SUCCESS);
        assert_eq!(count(), Err(UNINITIALIZED));
    });
}

#[test]
fn a_forked_child_starts_uninitialized() {
    in_folder("a_forked_child_starts_uninitialized", "", |folder| {
        let nvml = load();
        let server = Server::start(folder);
        assert_eq!(call!(nvml.nvmlInit_v2()), SUCCESS);
        server.state().used.insert(0, 1 << 30);
        let used = || {
            let device = get!(nvml.nvmlDeviceGetHandleByIndex_v2(0) -> nvmlDevice_t)?;
            get!(nvml.nvmlDeviceGetMemoryInfo(device) -> nvmlMemory_t).map(|memory| memory.used)
        };
        assert_eq!(used(), Ok(1 << 30));
        // SAFETY: the child calls only the library, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = used() == Err(UNINITIALIZED);
            let init = call!(nvml.nvmlInit_v2()) == SUCCESS;
            let after = used() == Ok(1 << 30);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit((!(before && init && after)).into()) };
        }
        let mut status = -1;
        // SAFETY: waits for this test's own child, and writes the status to a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(used(), Ok(1 << 30));
    });
}

#[test]
fn every_listed_name_is_exported() {
    let path = CString::new(library().as_os_str().as_bytes()).unwrap();
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    for name in include_str!("names.txt").lines() {
        let c_name = CString::new(name).unwrap();
        // SAFETY: the library is loaded, and the name is a C string.
        let place = unsafe { libc::dlsym(library, c_name.as_ptr()) };
        assert!(!place.is_null(), "{name}");
    }
}
