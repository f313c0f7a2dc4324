"""What AWS answers, from stand-ins: EC2, accounts, prices."""
