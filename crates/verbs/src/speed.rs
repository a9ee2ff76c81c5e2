//! The speed of a port, from the codes that rdma-core reports. Read once for each port, when the fabric is created.

use trunkline_sys::verbs::PortAttrEx;

/// Mb/s of a port with an unknown code: the speed that NCCL assumes of a NIC that reports no speed.
const UNKNOWN_MBPS: u32 = 10_000;

/// Mb/s of a lane, by the bit that encodes it: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
const LANE_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];

/// Number of lanes, by the bit that encodes it.
const LANES: [u32; 5] = [1, 4, 8, 12, 2];

/// Returns the Mb/s of a port. `active_speed_ex` has precedence if the library fills it, because the older field of 8 bits has no room for XDR.
pub(crate) fn of_port(port: &PortAttrEx) -> u32 {
    let newer = port.active_speed_ex;
    let code = if newer == 0 { port.attr.active_speed.into() } else { newer };
    let lane = by_bit(code, &LANE_MBPS).zip(by_bit(port.attr.active_width.into(), &LANES));
    lane.map_or(UNKNOWN_MBPS, |(lane, lanes)| lane * lanes)
}

/// Returns the entry of the lowest bit that is set; `None` without a bit, or for one beyond the table.
fn by_bit(code: u32, table: &[u32]) -> Option<u32> {
    table.get(code.trailing_zeros() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(speed: u8, speed_ex: u32, width: u8) -> u32 {
        // SAFETY: the attributes consist of plain numbers, for which all zeros is a valid value.
        let mut port: PortAttrEx = unsafe { std::mem::zeroed() };
        (port.attr.active_speed, port.active_speed_ex, port.attr.active_width) = (speed, speed_ex, width);
        of_port(&port)
    }

    #[test]
    fn port_speed_is_lanes_times_lane_speed() {
        for (speed, width, want) in
            [(64, 2, 200_000), (128, 2, 400_000), (32, 1, 25_000), (1, 1, 2_500), (16, 8, 168_000)]
        {
            assert_eq!(port(speed, 0, width), want);
        }
    }

    #[test]
    fn xdr_is_read_from_the_newer_field() {
        assert_eq!(port(0, 256, 2), 800_000);
        // A library may report the fastest speed that fits into the older field beside it.
        assert_eq!(port(128, 256, 2), 800_000);
        assert_eq!(port(0, 256, 1), 200_000);
    }

    #[test]
    fn unknown_codes_are_not_taken_for_xdr() {
        for (speed, speed_ex, width) in
            [(0, 0, 2), (0, 512, 2), (0, 1 << 31, 2), (64, 0, 0), (64, 0, 32), (0, 0, 0)]
        {
            assert_eq!(port(speed, speed_ex, width), UNKNOWN_MBPS, "{speed} {speed_ex} {width}");
        }
    }
}
