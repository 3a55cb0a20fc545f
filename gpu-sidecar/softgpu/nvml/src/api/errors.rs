//! Memory errors, of which there are none. Failures of a GPU are reported as Xids.

use super::board::fixed;
use crate::answer::{Answer, Return, export};
use crate::handle::Handle;
use crate::layout::EccCounts;
use crate::pointer::{Out, Slots};
use crate::session::with_gpu;

fn none_retired(device: Handle, cause: u32, count: Out<u32>) -> Answer {
    with_gpu(device, |session, gpu| {
        if session.node.facts(gpu).remaps_rows {
            return Err(Return::NOT_SUPPORTED);
        }
        if cause > 1 {
            return Err(Return::INVALID_ARGUMENT);
        }
        count.put(0)
    })
}

export! {
    fn nvmlDeviceGetEccMode(device: Handle, current: Out<u32>, pending: Out<u32>) {
        fixed(device, current, 1)?;
        fixed(device, pending, 1)
    }

    fn nvmlDeviceGetDefaultEccMode(device: Handle, mode: Out<u32>) {
        fixed(device, mode, 1)
    }

    fn nvmlDeviceGetTotalEccErrors(device: Handle, kind: u32, counter: u32, count: Out<u64>) {
        if kind > 1 || counter > 1 {
            return Err(Return::INVALID_ARGUMENT);
        }
        fixed(device, count, 0)
    }

    fn nvmlDeviceGetDetailedEccErrors(
        device: Handle,
        kind: u32,
        counter: u32,
        counts: Out<EccCounts>,
    ) {
        if kind > 1 || counter > 1 {
            return Err(Return::INVALID_ARGUMENT);
        }
        let none = EccCounts {
            l1Cache: 0,
            l2Cache: 0,
            deviceMemory: 0,
            registerFile: 0,
        };
        fixed(device, counts, none)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: Handle,
        kind: u32,
        counter: u32,
        place: u32,
        count: Out<u64>,
    ) {
        if kind > 1 || counter > 1 || place > 7 {
            return Err(Return::INVALID_ARGUMENT);
        }
        fixed(device, count, 0)
    }

    fn nvmlDeviceClearEccErrorCounts(device: Handle, counter: u32) {
        if counter > 1 {
            return Err(Return::INVALID_ARGUMENT);
        }
        with_gpu(device, |_, _| Ok(()))
    }

    fn nvmlDeviceGetRetiredPages(
        device: Handle,
        cause: u32,
        count: Out<u32>,
        _addresses: Slots<u64>,
    ) {
        none_retired(device, cause, count)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        device: Handle,
        cause: u32,
        count: Out<u32>,
        _addresses: Slots<u64>,
        _times: Slots<u64>,
    ) {
        none_retired(device, cause, count)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, is_pending: Out<u32>) {
        none_retired(device, 0, is_pending)
    }

    fn nvmlDeviceGetRemappedRows(
        device: Handle,
        corrected: Out<u32>,
        uncorrected: Out<u32>,
        is_pending: Out<u32>,
        has_failed: Out<u32>,
    ) {
        with_gpu(device, |session, gpu| {
            if !session.node.facts(gpu).remaps_rows {
                return Err(Return::NOT_SUPPORTED);
            }
            [corrected, uncorrected, is_pending, has_failed]
                .into_iter()
                .try_for_each(|out| out.put(0))
        })
    }
}
