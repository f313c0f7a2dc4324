variable "lifetime_s" {
  description = "Seconds after its boot at which a node shuts itself down should its clock be wrong; null leaves it to expires_at alone."
  type        = number
}
