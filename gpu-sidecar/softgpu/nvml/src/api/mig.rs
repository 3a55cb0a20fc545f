//! MIG: existing and possible slices. The configuration slices a software GPU, so creating and destroying instances
//! returns NOT_SUPPORTED.
//!
//! Every slice is a GPU instance with one compute instance that spans it.

use device::mig::Mig;

use crate::answer::{Answer, Return, export};
use crate::handle::{Handle, Object};
use crate::layout::{
    Attributes, ComputeInstance, ComputeInstanceV1, ComputePlacement, ComputeProfile,
    ComputeProfileV2, ComputeProfileV3, GpuInstance, GpuPlacement, GpuProfile, GpuProfileV2,
    GpuProfileV3, text,
};
use crate::mig;
use crate::node::{Device, Node};
use crate::pointer::{Out, Slots, Versioned};
use crate::session::{self, Session, with_device, with_gpu};

const MIB: u64 = 1024 * 1024;
/// Number of GPU instance profiles (`NVML_GPU_INSTANCE_PROFILE_COUNT`).
const PROFILES: u32 = 17;
/// Number of compute instance profiles (`NVML_COMPUTE_INSTANCE_PROFILE_COUNT`).
const COMPUTE_PROFILES: u32 = 8;
/// Id of the only compute instance of each GPU instance.
pub(super) const COMPUTE_INSTANCE: u32 = 0;

/// Returns the id of a slice's GPU instance; `None` for a whole GPU.
pub(super) fn instance_id(node: &Node, at: usize) -> Option<u32> {
    let unit = node.unit(at);
    let slice = unit.slice.as_ref()?;
    let mig = node.mig(unit.gpu).ok()?;
    Some(mig::instance_id(mig, slice.start, slice.size))
}

/// Calls `body` with a MIG device's index among all units.
fn with_slice(handle: Handle, body: impl FnOnce(&Session, usize) -> Answer) -> Answer {
    with_device(handle, |session, device| match device {
        Device::Slice(at) => body(session, at),
        Device::Gpu(_) => Err(Return::NOT_SUPPORTED),
    })
}

/// Calls `body` with the index of an instance's slice among all units; fails if the GPU is lost.
fn with_instance(
    handle: Handle,
    is_compute: bool,
    body: impl FnOnce(&Node, usize) -> Answer,
) -> Answer {
    let at = match handle.object()? {
        Object::GpuInstance(at) if !is_compute => at,
        Object::ComputeInstance(at) if is_compute => at,
        _ => return Err(Return::INVALID_ARGUMENT),
    };
    with_slice(Object::Slice(at).into(), |session, at| {
        body(&session.node, at)
    })
}

fn with_mig(handle: Handle, body: impl FnOnce(&Node, usize, &Mig) -> Answer) -> Answer {
    with_gpu(handle, |session, gpu| {
        body(&session.node, gpu, session.node.mig(gpu)?)
    })
}

/// Calls `body` with a profile, by the vendor's id.
fn with_profile(
    handle: Handle,
    id: u32,
    body: impl FnOnce(&Node, usize, &Mig, usize) -> Answer,
) -> Answer {
    with_mig(handle, |node, gpu, mig| {
        let profile = mig::with_id(mig, id).ok_or(Return::INVALID_ARGUMENT)?;
        body(node, gpu, mig, profile)
    })
}

/// Calls `body` with a profile, by NVML's number.
fn with_number(
    handle: Handle,
    number: u32,
    body: impl FnOnce(&Node, usize, &Mig, usize) -> Answer,
) -> Answer {
    if number >= PROFILES {
        return Err(Return::INVALID_ARGUMENT);
    }
    with_mig(handle, |node, gpu, mig| {
        let profile = mig::with_number(mig, number).ok_or(Return::NOT_SUPPORTED)?;
        body(node, gpu, mig, profile)
    })
}

/// Returns a GPU instance profile, with one copy engine for each compute slice and no video engines.
fn gpu_profile(node: &Node, gpu: usize, mig: &Mig, at: usize) -> GpuProfile {
    let profile = &mig.profiles[at];
    GpuProfile {
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices,
        instanceCount: mig::room(mig, &[], at),
        multiprocessorCount: profile.sms,
        copyEngineCount: profile.compute_slices,
        decoderCount: 0,
        encoderCount: 0,
        jpegCount: 0,
        ofaCount: 0,
        memorySizeMB: node.profile_memory(gpu, mig, at) / MIB,
    }
}

/// Writes a profile in the version the caller requests.
fn put_gpu_profile(
    out: Out<GpuProfileV2>,
    node: &Node,
    gpu: usize,
    mig: &Mig,
    at: usize,
) -> Answer {
    let known = gpu_profile(node, gpu, mig, at);
    let name = text(&format!("MIG {}", mig.profiles[at].name));
    let newer = out.cast::<GpuProfileV3>();
    if newer.check_version().is_ok() {
        return newer.put(GpuProfileV3 {
            version: GpuProfileV3::VERSION,
            id: known.id,
            sliceCount: known.sliceCount,
            instanceCount: known.instanceCount,
            multiprocessorCount: known.multiprocessorCount,
            copyEngineCount: known.copyEngineCount,
            decoderCount: known.decoderCount,
            encoderCount: known.encoderCount,
            jpegCount: known.jpegCount,
            ofaCount: known.ofaCount,
            memorySizeMB: known.memorySizeMB,
            name,
            capabilities: 0,
        });
    }
    out.put_versioned(GpuProfileV2 {
        version: GpuProfileV2::VERSION,
        id: known.id,
        isP2pSupported: known.isP2pSupported,
        sliceCount: known.sliceCount,
        instanceCount: known.instanceCount,
        multiprocessorCount: known.multiprocessorCount,
        copyEngineCount: known.copyEngineCount,
        decoderCount: known.decoderCount,
        encoderCount: known.encoderCount,
        jpegCount: known.jpegCount,
        ofaCount: known.ofaCount,
        memorySizeMB: known.memorySizeMB,
        name,
    })
}

/// Returns the compute instance profile that spans a GPU instance, the only one.
fn compute_profile(node: &Node, at: usize) -> Answer<ComputeProfile> {
    let unit = node.unit(at);
    let slices = unit.slice.as_ref().map(|slice| slice.compute_slices);
    let slices = slices.ok_or(Return::UNKNOWN)?;
    Ok(ComputeProfile {
        id: mig::compute_number(slices).ok_or(Return::NOT_SUPPORTED)?,
        sliceCount: slices,
        instanceCount: 1,
        multiprocessorCount: unit.sms,
        sharedCopyEngineCount: slices,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
    })
}

/// Returns the compute instance profile with NVML's number; fails unless it spans the GPU instance.
fn spanning_profile(node: &Node, at: usize, number: u32, engines: u32) -> Answer<ComputeProfile> {
    if number >= COMPUTE_PROFILES || engines != 0 {
        return Err(Return::INVALID_ARGUMENT);
    }
    let own = compute_profile(node, at)?;
    if own.id == number {
        Ok(own)
    } else {
        Err(Return::NOT_SUPPORTED)
    }
}

fn placements(device: Handle, id: u32, places: Slots<GpuPlacement>, count: Out<u32>) -> Answer {
    with_profile(device, id, |_, _, mig, profile| {
        let profile = &mig.profiles[profile];
        let size = profile.memory_slices;
        let all = profile
            .starts
            .iter()
            .map(|&start| GpuPlacement { start, size });
        let all: Vec<_> = all.collect();
        // The caller provides room for all possible ones, regardless of the count.
        count.put(u32::try_from(all.len()).unwrap_or(u32::MAX))?;
        if places.is_null() {
            Ok(())
        } else {
            places.put_all(&all)
        }
    })
}

fn attributes(device: Handle, out: Out<Attributes>) -> Answer {
    with_slice(device, |session, at| {
        let unit = session.node.unit(at);
        let slices = unit.slice.as_ref().map_or(0, |slice| slice.compute_slices);
        out.put(Attributes {
            multiprocessorCount: unit.sms,
            sharedCopyEngineCount: slices,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: unit.memory / MIB,
        })
    })
}

fn compute_instance(node: &Node, at: usize) -> Answer<ComputeInstanceV1> {
    Ok(ComputeInstanceV1 {
        device: Object::Gpu(node.unit(at).gpu).into(),
        gpu_instance: Object::GpuInstance(at).into(),
        id: COMPUTE_INSTANCE,
        profile: compute_profile(node, at)?.id,
    })
}

export! {
    /// Returns whether the GPU is sliced, as current and pending mode.
    fn nvmlDeviceGetMigMode(device: Handle, current: Out<u32>, pending: Out<u32>) {
        with_mig(device, |node, gpu, _| {
            let is_on = node.is_sliced(gpu).into();
            current.put(is_on)?;
            pending.put(is_on)
        })
    }

    /// Succeeds only for the current mode.
    fn nvmlDeviceSetMigMode(device: Handle, mode: u32, status: Out<Return>) {
        with_mig(device, |node, gpu, _| {
            if mode > 1 {
                return Err(Return::INVALID_ARGUMENT);
            }
            let is_current = node.is_sliced(gpu) == (mode == 1);
            let answer = if is_current { Return::SUCCESS } else { Return::NOT_SUPPORTED };
            status.put(answer)?;
            if is_current { Ok(()) } else { Err(answer) }
        })
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<u32>) {
        with_gpu(device, |session, gpu| match session.node.mig(gpu) {
            Ok(mig) if session.node.is_sliced(gpu) => count.put(mig.compute_slices),
            _ => count.put(0),
        })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: u32, out: Out<Handle>) {
        with_mig(device, |node, gpu, mig| {
            if !node.is_sliced(gpu) {
                return Err(Return::NOT_SUPPORTED);
            }
            if index >= mig.compute_slices {
                return Err(Return::INVALID_ARGUMENT);
            }
            let place = usize::try_from(index).ok();
            let at = place.and_then(|place| node.slices(gpu).get(place));
            out.put(Object::Slice(*at.ok_or(Return::NOT_FOUND)?).into())
        })
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Handle, out: Out<Handle>) {
        with_slice(device, |session, at| out.put(Object::Gpu(session.node.unit(at).gpu).into()))
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<u32>) {
        with_device(device, |_, device| is_mig.put(matches!(device, Device::Slice(_)).into()))
    }

    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: Out<u32>) {
        with_slice(device, |session, at| {
            id.put(instance_id(&session.node, at).ok_or(Return::UNKNOWN)?)
        })
    }

    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: Out<u32>) {
        with_slice(device, |_, _| id.put(COMPUTE_INSTANCE))
    }

    fn nvmlDeviceGetAttributes(device: Handle, out: Out<Attributes>) {
        attributes(device, out)
    }

    fn nvmlDeviceGetAttributes_v2(device: Handle, out: Out<Attributes>) {
        attributes(device, out)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(device: Handle, number: u32, out: Out<GpuProfile>) {
        with_number(device, number, |node, gpu, mig, at| {
            out.put(gpu_profile(node, gpu, mig, at))
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Handle,
        number: u32,
        out: Out<GpuProfileV2>,
    ) {
        with_number(device, number, |node, gpu, mig, at| {
            put_gpu_profile(out, node, gpu, mig, at)
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: Handle,
        id: u32,
        out: Out<GpuProfileV2>,
    ) {
        with_profile(device, id, |node, gpu, mig, at| {
            put_gpu_profile(out, node, gpu, mig, at)
        })
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Handle,
        id: u32,
        places: Slots<GpuPlacement>,
        count: Out<u32>,
    ) {
        placements(device, id, places, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle,
        id: u32,
        places: Slots<GpuPlacement>,
        count: Out<u32>,
    ) {
        placements(device, id, places, count)
    }

    /// Returns the number of further slices that would fit, although none can be created.
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, id: u32, count: Out<u32>) {
        with_profile(device, id, |node, gpu, mig, profile| {
            if !node.is_sliced(gpu) {
                return Err(Return::NOT_SUPPORTED);
            }
            count.put(mig::room(mig, &node.layout(gpu)?, profile))
        })
    }

    /// Returns the GPU instances with this profile.
    fn nvmlDeviceGetGpuInstances(
        device: Handle,
        id: u32,
        instances: Slots<Handle>,
        count: Out<u32>,
    ) {
        with_profile(device, id, |node, gpu, _, _| {
            if !node.is_sliced(gpu) {
                return Err(Return::NOT_SUPPORTED);
            }
            let is_it = |at: usize| {
                let slice = node.unit(at).slice.as_ref();
                slice.is_some_and(|slice| slice.profile_id == id)
            };
            let all = node.slices(gpu).iter().filter(|&&at| is_it(at));
            let all: Vec<_> = all.map(|&at| Object::GpuInstance(at).into()).collect();
            // The caller provides room for all possible ones, regardless of the count.
            count.put(u32::try_from(all.len()).unwrap_or(u32::MAX))?;
            instances.put_all(&all)
        })
    }

    fn nvmlDeviceGetGpuInstanceById(device: Handle, id: u32, instance: Out<Handle>) {
        with_mig(device, |node, gpu, _| {
            if !node.is_sliced(gpu) {
                return Err(Return::NOT_SUPPORTED);
            }
            let mut slices = node.slices(gpu).iter();
            let at = slices.find(|&&at| instance_id(node, at) == Some(id));
            instance.put(Object::GpuInstance(*at.ok_or(Return::NOT_FOUND)?).into())
        })
    }

    fn nvmlGpuInstanceGetInfo(instance: Handle, out: Out<GpuInstance>) {
        with_instance(instance, false, |node, at| {
            let unit = node.unit(at);
            let slice = unit.slice.as_ref().ok_or(Return::UNKNOWN)?;
            out.put(GpuInstance {
                device: Handle::from(Object::Gpu(unit.gpu)).pointer(),
                id: instance_id(node, at).ok_or(Return::UNKNOWN)?,
                profileId: slice.profile_id,
                placement: GpuPlacement {
                    start: slice.start,
                    size: slice.size,
                },
            })
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Handle,
        number: u32,
        engines: u32,
        out: Out<ComputeProfile>,
    ) {
        with_instance(instance, false, |node, at| {
            out.put(spanning_profile(node, at, number, engines)?)
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: Handle,
        number: u32,
        engines: u32,
        out: Out<ComputeProfileV2>,
    ) {
        with_instance(instance, false, |node, at| {
            let known = spanning_profile(node, at, number, engines)?;
            let name = node.unit(at).slice.as_ref().map_or("", |slice| slice.profile.as_str());
            let name = text(&format!("MIG {name}"));
            let newer = out.cast::<ComputeProfileV3>();
            if newer.check_version().is_ok() {
                return newer.put(ComputeProfileV3 {
                    version: ComputeProfileV3::VERSION,
                    id: known.id,
                    sliceCount: known.sliceCount,
                    instanceCount: known.instanceCount,
                    multiprocessorCount: known.multiprocessorCount,
                    sharedCopyEngineCount: known.sharedCopyEngineCount,
                    sharedDecoderCount: known.sharedDecoderCount,
                    sharedEncoderCount: known.sharedEncoderCount,
                    sharedJpegCount: known.sharedJpegCount,
                    sharedOfaCount: known.sharedOfaCount,
                    name,
                    capabilities: 0,
                });
            }
            out.put_versioned(ComputeProfileV2 {
                version: ComputeProfileV2::VERSION,
                id: known.id,
                sliceCount: known.sliceCount,
                instanceCount: known.instanceCount,
                multiprocessorCount: known.multiprocessorCount,
                sharedCopyEngineCount: known.sharedCopyEngineCount,
                sharedDecoderCount: known.sharedDecoderCount,
                sharedEncoderCount: known.sharedEncoderCount,
                sharedJpegCount: known.sharedJpegCount,
                sharedOfaCount: known.sharedOfaCount,
                name,
            })
        })
    }

    /// Returns 0, because the only compute instance spans the GPU instance.
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: Handle,
        id: u32,
        count: Out<u32>,
    ) {
        with_instance(instance, false, |node, at| {
            spanning_profile(node, at, id, 0)?;
            count.put(0)
        })
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Handle,
        id: u32,
        places: Slots<ComputePlacement>,
        count: Out<u32>,
    ) {
        with_instance(instance, false, |node, at| {
            let size = spanning_profile(node, at, id, 0)?.sliceCount;
            count.put(1)?;
            if places.is_null() {
                return Ok(());
            }
            places.put_all(&[ComputePlacement { start: 0, size }])
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: Handle,
        id: u32,
        instances: Slots<Handle>,
        count: Out<u32>,
    ) {
        with_instance(instance, false, |node, at| {
            if id >= COMPUTE_PROFILES {
                return Err(Return::INVALID_ARGUMENT);
            }
            if compute_profile(node, at)?.id != id {
                return count.put(0);
            }
            count.put(1)?;
            instances.put_all(&[Object::ComputeInstance(at).into()])
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceById(instance: Handle, id: u32, out: Out<Handle>) {
        with_instance(instance, false, |_, at| {
            if id != COMPUTE_INSTANCE {
                return Err(Return::NOT_FOUND);
            }
            out.put(Object::ComputeInstance(at).into())
        })
    }

    fn nvmlComputeInstanceGetInfo(instance: Handle, out: Out<ComputeInstanceV1>) {
        with_instance(instance, true, |node, at| out.put(compute_instance(node, at)?))
    }

    fn nvmlComputeInstanceGetInfo_v2(instance: Handle, out: Out<ComputeInstance>) {
        with_instance(instance, true, |node, at| {
            let first = compute_instance(node, at)?;
            out.put(ComputeInstance {
                device: first.device.pointer(),
                gpuInstance: first.gpu_instance.pointer(),
                id: first.id,
                profileId: first.profile,
                placement: ComputePlacement {
                    start: 0,
                    size: compute_profile(node, at)?.sliceCount,
                },
            })
        })
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlDeviceCreateGpuInstance(_device: Handle, _id: u32, _instance: Out<Handle>) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        _device: Handle,
        _id: u32,
        _place: Out<GpuPlacement>,
        _instance: Out<Handle>,
    ) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlGpuInstanceDestroy(_instance: Handle) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlGpuInstanceCreateComputeInstance(_instance: Handle, _id: u32, _out: Out<Handle>) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        _instance: Handle,
        _id: u32,
        _place: Out<ComputePlacement>,
        _out: Out<Handle>,
    ) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }

    /// Fails, because the configuration defines the slices.
    fn nvmlComputeInstanceDestroy(_instance: Handle) {
        session::with(|_| Err(Return::NOT_SUPPORTED))
    }
}
