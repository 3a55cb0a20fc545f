//! Clocks, power and temperature: modelled from utilization, for a sliced GPU the mean of its slices. They are
//! read-only.

use super::board::fixed;
use crate::answer::{Answer, Return, export};
use crate::facts::Facts;
use crate::handle::Handle;
use crate::layout::{Temperature, Violation};
use crate::pointer::{Out, Slots, Versioned};
use crate::session::{Busy, micros_now, with_gpu};

/// Temperature thresholds in °C: shutdown, slowdown, memory maximum, GPU maximum.
const THRESHOLDS: [u32; 4] = [95, 92, 95, 87];
/// Clock event reason "GPU idle", the only one that occurs.
const IDLE: u64 = 1;

/// Writes a figure of a GPU that depends on its utilization.
fn figure(handle: Handle, out: Out<u32>, figure: impl FnOnce(&Facts, Busy) -> u32) -> Answer {
    with_gpu(handle, |session, gpu| {
        let busy = session.busy(gpu)?;
        out.put(figure(session.node.facts(gpu), busy))
    })
}

/// Writes a clock in MHz: that of the SMs from `sms`, those of memory and video engines as constants.
fn clock(
    handle: Handle,
    kind: u32,
    out: Out<u32>,
    sms: impl FnOnce(&Facts, Busy) -> u32,
) -> Answer {
    if kind > 3 {
        return Err(Return::INVALID_ARGUMENT);
    }
    figure(handle, out, |facts, busy| match kind {
        0 | 1 => sms(facts, busy),
        2 => facts.clock_memory,
        _ => facts.clock_video,
    })
}

fn reasons(handle: Handle, out: Out<u64>) -> Answer {
    with_gpu(handle, |session, gpu| {
        let busy = session.busy(gpu)?;
        out.put(if busy.sms == 0 { IDLE } else { 0 })
    })
}

export! {
    fn nvmlDeviceGetTemperature(device: Handle, sensor: u32, degrees: Out<u32>) {
        if sensor != 0 {
            return Err(Return::INVALID_ARGUMENT);
        }
        figure(device, degrees, |_, busy| Facts::degrees(busy.sms))
    }

    fn nvmlDeviceGetTemperatureV(device: Handle, temperature: Out<Temperature>) {
        with_gpu(device, |session, gpu| {
            temperature.check_version()?;
            if temperature.get()?.sensorType != 0 {
                return Err(Return::INVALID_ARGUMENT);
            }
            let busy = session.busy(gpu)?;
            temperature.put(Temperature {
                version: Temperature::VERSION,
                sensorType: 0,
                temperature: i32::try_from(Facts::degrees(busy.sms)).unwrap_or(i32::MAX),
            })
        })
    }

    fn nvmlDeviceGetTemperatureThreshold(device: Handle, kind: u32, degrees: Out<u32>) {
        match (usize::try_from(kind).ok().and_then(|at| THRESHOLDS.get(at)), kind) {
            (Some(threshold), _) => fixed(device, degrees, *threshold),
            (None, ..=7) => Err(Return::NOT_SUPPORTED),
            (None, _) => Err(Return::INVALID_ARGUMENT),
        }
    }

    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<u32>) {
        figure(device, milliwatts, |facts, busy| facts.power(busy.sms))
    }

    fn nvmlDeviceGetPowerManagementMode(device: Handle, is_on: Out<u32>) {
        fixed(device, is_on, 1)
    }

    fn nvmlDeviceGetPowerManagementLimit(device: Handle, milliwatts: Out<u32>) {
        with_gpu(device, |session, gpu| milliwatts.put(session.node.facts(gpu).power_max))
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: Out<u32>) {
        with_gpu(device, |session, gpu| milliwatts.put(session.node.facts(gpu).power_max))
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: Out<u32>) {
        with_gpu(device, |session, gpu| milliwatts.put(session.node.facts(gpu).power_max))
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(
        device: Handle,
        least: Out<u32>,
        most: Out<u32>,
    ) {
        with_gpu(device, |session, gpu| {
            let facts = session.node.facts(gpu);
            least.put(facts.power_min)?;
            most.put(facts.power_max)
        })
    }

    /// Returns P0 always, even when idle, as on the vendor's boards of these models.
    fn nvmlDeviceGetPerformanceState(device: Handle, state: Out<u32>) {
        fixed(device, state, 0)
    }

    fn nvmlDeviceGetPowerState(device: Handle, state: Out<u32>) {
        fixed(device, state, 0)
    }

    fn nvmlDeviceGetClockInfo(device: Handle, kind: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, busy| facts.clock(busy.sms))
    }

    fn nvmlDeviceGetMaxClockInfo(device: Handle, kind: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, _| facts.clock_max)
    }

    fn nvmlDeviceGetMaxCustomerBoostClock(device: Handle, kind: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, _| facts.clock_max)
    }

    fn nvmlDeviceGetApplicationsClock(device: Handle, kind: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, _| facts.clock_default)
    }

    fn nvmlDeviceGetDefaultApplicationsClock(device: Handle, kind: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, _| facts.clock_default)
    }

    fn nvmlDeviceGetClock(device: Handle, kind: u32, which: u32, megahertz: Out<u32>) {
        clock(device, kind, megahertz, |facts, busy| match which {
            0 => facts.clock(busy.sms),
            1 | 2 => facts.clock_default,
            _ => facts.clock_max,
        })
    }

    fn nvmlDeviceGetSupportedMemoryClocks(
        device: Handle,
        count: Out<u32>,
        megahertz: Slots<u32>,
    ) {
        with_gpu(device, |session, gpu| {
            megahertz.put_counted(count, &[session.node.facts(gpu).clock_memory])
        })
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(
        device: Handle,
        memory: u32,
        count: Out<u32>,
        megahertz: Slots<u32>,
    ) {
        with_gpu(device, |session, gpu| {
            let facts = session.node.facts(gpu);
            if memory != facts.clock_memory {
                return Err(Return::NOT_FOUND);
            }
            megahertz.put_counted(count, &facts.clocks())
        })
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(device: Handle, out: Out<u64>) {
        reasons(device, out)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, out: Out<u64>) {
        reasons(device, out)
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(device: Handle, out: Out<u64>) {
        fixed(device, out, IDLE)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: Handle, out: Out<u64>) {
        fixed(device, out, IDLE)
    }

    /// Returns 0: clocks are never reduced.
    fn nvmlDeviceGetViolationStatus(device: Handle, _policy: u32, out: Out<Violation>) {
        fixed(device, out, Violation { referenceTime: micros_now(), violationTime: 0 })
    }

    /// Returns 0, because boards of these models have no fans.
    fn nvmlDeviceGetNumFans(device: Handle, fans: Out<u32>) {
        fixed(device, fans, 0)
    }
}
