//! What holds a pod's namespaces on the real ground. No image can be pulled there, so it is our own; compiled by rustc
//! alone into a static program. The container runtime ends it with SIGKILL, so that it needs no signal handling.

fn main() {
    loop {
        std::thread::park();
    }
}
