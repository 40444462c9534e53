//! Finds DPDK before the compiler runs, and passes the version of DPDK on to the library.

use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_NODE").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    match pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk")
    {
        Ok(dpdk) => println!("cargo::rustc-env=HEDDLE_DPDK_VERSION={}", dpdk.version),
        Err(e) => {
            let why = match e {
                pkg_config::Error::Command { .. } => "pkg-config does not run",
                _ => "pkg-config does not find libdpdk, or it is older",
            };
            println!(
                "cargo::error=Heddle needs DPDK 22.11 or newer with headers: {why}. \
                 On Debian: apt install libdpdk-dev dpdk-dev libclang-dev pkg-config"
            );
            exit(1);
        }
    }
}
