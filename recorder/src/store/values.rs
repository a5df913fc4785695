//! Values in columns.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::side::Side;

/// A number as SQLite has it: those from 2^63 are cut to 2^63 - 1, which times reach in the year 2262.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A number of SQLite; negative ones, which are not written, are 0.
pub(super) fn uint(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// An address as IPv6, so that IPv4 addresses equal their mapped form.
pub(super) fn ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// An address and a port of columns; mapped IPv4 addresses are IPv4.
pub(super) fn address(ip: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}

/// A side as a number.
pub(super) fn side(side: Side) -> i64 {
    match side {
        Side::Local => 0,
        Side::Remote => 1,
    }
}

/// The side of a number.
pub(super) fn side_of(value: i64) -> Side {
    match value {
        0 => Side::Local,
        _ => Side::Remote,
    }
}
